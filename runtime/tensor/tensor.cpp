#include "runtime/tensor/tensor.h"

#include <algorithm>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/host_view.h"

namespace zs {

namespace {

void check_count(std::size_t values, const Shape& shape) {
  if (!std::cmp_equal(values, shape.numel()))
    throw UsageError(fmt::format("{} values for a tensor {}", values, shape.str()), "give one for each element");
}

}  // namespace

Tensor Tensor::empty(Context& context, Shape shape, DType dtype, const char* label) {
  context.check_thread("a new tensor");
  Tensor tensor;
  const std::int64_t bytes = shape.numel() * size_of(dtype);
  tensor.storage_ = std::make_shared<TensorStorage>(context, context.pool().acquire(bytes, context.stream(), label));
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  if (auto* const unfilled = context.mode().unfilled) unfilled->push_back(tensor.storage_);
  return tensor;
}

Tensor Tensor::zeros(Context& context, Shape shape, DType dtype, const char* label) {
  Tensor tensor = empty(context, shape, dtype, label);
  const Buffer out = tensor.buffer();
  context.launch({"zero", {}, {out}},
                 [&kernels = context.kernels(), out](ExecContext& exec) { kernels.zero(exec, out); });
  return tensor;
}

Tensor Tensor::from_host(Context& context, Shape shape, std::vector<float> values, DType dtype) {
  check_count(values.size(), shape);
  if (dtype != DType::f32 && dtype != DType::bf16)
    throw UsageError(fmt::format("a tensor of {} from f32 values", name_of(dtype)), "make it f32 or bf16");
  Tensor tensor = empty(context, shape, dtype);
  const Buffer out = tensor.buffer();
  if (dtype == DType::f32) {
    context.launch({"from_host", {}, {out}}, upload_of(context.kernels(), out, std::move(values)));
  } else {
    context.launch({"from_host", {}, {out}},
                   upload_of(context.kernels(), out, std::vector<BFloat16>(values.begin(), values.end())));
  }
  return tensor;
}

Tensor Tensor::from_host(Context& context, Shape shape, std::vector<std::int32_t> values) {
  check_count(values.size(), shape);
  Tensor tensor = empty(context, shape, DType::i32, "batch");
  const Buffer out = tensor.buffer();
  context.launch({"from_host", {}, {out}}, upload_of(context.kernels(), out, std::move(values)));
  return tensor;
}

Context& Tensor::context() const {
  if (storage_ == nullptr) throw UsageError("an empty tensor has no context", "give it a value first");
  if (storage_->context == nullptr)
    throw UsageError(fmt::format("a tensor, {}, is used after its context has ended", describe()),
                     "let it end with the body of zs::run, or copy its values by to_host() before");
  return *storage_->context;
}

void Tensor::note_write() const { context().storages().note_write(storage_->number, context().last_sequence()); }

const Parameter* Tensor::take_unnamed(std::span<Parameter* const> named) const {
  return context().storages().take_unnamed(storage_->number, named);
}

Buffer Tensor::buffer() const {
  if (storage_ == nullptr) throw UsageError("an empty tensor has no elements", "give it a value first");
  if (storage_->context == nullptr) static_cast<void>(context());  // the call refuses a context that has ended
  const std::int64_t storage_elems = storage_->memory.bytes() / size_of(dtype_);
  Buffer all = storage_->memory.buffer(dtype_, storage_elems);
  all.number = storage_->number;
  return all.slice(offset_, numel());
}

Tensor Tensor::reshape(Shape shape) const {
  if (shape.numel() != numel())
    throw UsageError(fmt::format("reshape of {} to {}", shape_.str(), shape.str()),
                     fmt::format("give a shape of {} elements", numel()));
  Tensor view = detach();
  view.shape_ = shape;
  record_op(view, "reshape", {*this}, {},
            [from = shape_](const Tensor& dy) { return std::vector<Tensor>{dy.detach().reshape(from)}; });
  return view;
}

Tensor Tensor::reshape(std::initializer_list<std::int64_t> sizes) const {
  std::vector<std::int64_t> dims(sizes);
  const auto open = std::find(dims.begin(), dims.end(), -1);
  if (open == dims.end()) return reshape(Shape(sizes));
  *open = 1;
  const std::int64_t others = Shape(dims).numel();
  if (others == 0 || numel() % others != 0)
    throw UsageError(fmt::format("reshape of {} to ({})", shape_.str(), fmt::join(sizes, ", ")),
                     fmt::format("the sizes beside one -1 have to divide {} elements", numel()));
  *open = numel() / others;
  return reshape(Shape(dims));
}

namespace {

/// The gradient of rows from `first` on, added to `held`, what x's gradient holds so far; or among zeros.
Tensor rows_gradient(const Tensor& dy, const Tensor& held, const Shape& shape, std::int64_t first) {
  Context& context = dy.context();
  const std::int64_t count = dy.shape()[0];
  const bool is_in_place = held && held.is_sole_owner();
  Tensor dx = is_in_place ? held
              : held      ? Tensor::empty(context, shape, dy.dtype())
                          : Tensor::zeros(context, shape, dy.dtype());
  const Buffer out = dx.rows(first, count).buffer(), in = dy.buffer(), all = dx.buffer(),
               before = held ? held.buffer() : Buffer{};
  if (held && !is_in_place)
    context.launch({"copy_gradient", {before}, {all}},
                   [&kernels = context.kernels(), all, before](ExecContext& exec) { kernels.copy(exec, all, before); });
  if (count == 0) return dx;
  OpInfo info{"rows_backward", {in}, {out}};
  if (held) info.reads.push_back(out);
  context.launch(std::move(info),
                 [&kernels = context.kernels(), out, in, adds = static_cast<bool>(held)](ExecContext& exec) {
                   adds ? kernels.add(exec, out, out, in) : kernels.copy(exec, out, in);
                 });
  return dx;
}

}  // namespace

Tensor Tensor::rows(std::int64_t first, std::int64_t count) const {
  if (shape_.rank() == 0 || first < 0 || count < 0 || first > shape_[0] || count > shape_[0] - first)
    throw UsageError(fmt::format("{} rows from {} on of {}", count, first, describe()), "name rows that there are");
  std::vector<std::int64_t> dims(shape_.dims().begin(), shape_.dims().end());
  Tensor view = detach();
  view.offset_ += dims[0] == 0 ? 0 : first * (numel() / dims[0]);
  dims[0] = count;
  view.shape_ = Shape(std::span<const std::int64_t>(dims));
  record_adding_op(view, "rows", *this, {}, [shape = shape_, first](const Tensor& dy, const Tensor& held) {
    return rows_gradient(dy, held, shape, first);
  });
  return view;
}

Tensor Tensor::detach() const {
  Tensor view = *this;
  view.autograd_.reset();
  return view;
}

std::vector<float> Tensor::to_host() const {
  ZS_REQUIRE(context().device().kind() != DeviceKind::meta, "to_host() of {}: the meta device holds no values",
             describe());
  if (dtype_ != DType::f32 && dtype_ != DType::bf16)
    throw UsageError(fmt::format("to_host() of {}", describe()),
                     "it gives floats: read integers by HostView(context, stream, x.buffer()).as<std::int32_t>()");
  const HostView view(context(), context().stream(), buffer());
  const Buffer& in = view.buffer();
  std::vector<float> values(static_cast<std::size_t>(in.elems));
  if (dtype_ == DType::f32) {
    std::copy_n(in.as<float>(), values.size(), values.begin());
  } else {
    std::transform(in.as<BFloat16>(), in.as<BFloat16>() + in.elems, values.begin(),
                   [](BFloat16 x) { return static_cast<float>(x); });
  }
  return values;
}

void Tensor::set_requires_grad() {
  if (autograd_ && autograd_->producer)
    throw UsageError(fmt::format("set_requires_grad() of {}, which is an op's output", describe()),
                     "call it before an op takes part, or detach() the tensor first");
  autograd_ = std::make_shared<AutogradState>();
  autograd_->is_leaf_with_grad = true;
}

}  // namespace zs
