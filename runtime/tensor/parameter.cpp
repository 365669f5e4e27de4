#include "runtime/tensor/parameter.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/tensor.h"

namespace zs {

/// Shares of one op, not in the sum yet.
struct Parameter::Shares {
  std::vector<Tensor> apart;
};

Parameter::GradTarget Parameter::accumulation_target() {
  if (grad_.data == nullptr)
    throw UsageError(
        fmt::format("parameter {} is to get a gradient in a backward that has none for it", name_),
        "call set_trainable() between micro-batches alone, and name every parameter of an op to record_op");
  const float beta = grad_is_written_ ? 1.0f : 0.0f;
  grad_is_written_ = has_share_ = true;
  return {grad_, beta};
}

void Parameter::add_grad(Context& context, const Tensor& share) {
  if (!is_trainable_) return;
  if (!share || share.shape() != shape_ || (share.dtype() != DType::f32 && share.dtype() != DType::bf16))
    throw UsageError(fmt::format("add_grad of {} to parameter {} {}", share ? share.describe() : "an empty tensor",
                                 name_, shape_.str()),
                     "give f32 or bf16 of the parameter's shape");
  const GradTarget target = accumulation_target();
  const Buffer out = target.buffer, in = share.buffer();
  if (target.beta == 0)
    return context.launch({"set_gradient", {in}, {out}},
                          [&kernels = context.kernels(), out, in](ExecContext& exec) { kernels.cast(exec, out, in); });
  context.launch({"add_gradient", {in, out}, {out}},
                 [&kernels = context.kernels(), out, in](ExecContext& exec) { kernels.accumulate(exec, out, in); });
}

Parameter::GradTarget Parameter::grad_target() {
  if (op_context_ == nullptr) return accumulation_target();  // not in an op's backward
  if (!is_trainable_)
    throw UsageError(fmt::format("an op asks for the gradient of parameter {}, which is frozen", name_),
                     "ask is_trainable() before grad_target(), or use add_grad(), which leaves a frozen one alone");
  Context& context = *op_context_;
  const GradTarget sum = accumulation_target();
  if (sum.beta == 0) {
    context.launch({"zero_gradient", {}, {sum.buffer}},
                   [&kernels = context.kernels(), out = sum.buffer](ExecContext& exec) { kernels.zero(exec, out); });
    return sum;
  }
  if (!shares_) shares_ = std::make_shared<Shares>();
  shares_->apart.push_back(Tensor::zeros(context, shape_, sum.buffer.dtype, "gradient share"));
  return {shares_->apart.back().buffer(), 0};
}

bool Parameter::end_shares() {
  Context* const context = std::exchange(op_context_, nullptr);
  if (context == nullptr) return true;
  const std::shared_ptr<Shares> shares = std::exchange(shares_, nullptr);
  if (!shares) return has_share_;
  for (const Tensor& share : shares->apart) add_grad(*context, share);
  return true;
}

void Parameter::set_matrix_rows(std::vector<std::int64_t> rows) {
  std::int64_t sum = 0;
  bool is_right = shape_.rank() == 2;
  for (const std::int64_t count : rows) is_right = is_right && count > 0 && (sum += count) <= shape_[0];
  if (!is_right)
    throw UsageError(
        fmt::format("parameter {} of shape {} has no matrices of {} rows", name_, shape_.str(), fmt::join(rows, ", ")),
        "give rows above 0 that are its own in all, or fewer");
  matrix_rows_ = std::move(rows);
}

void Parameter::set_blocks(std::vector<std::int64_t> blocks) {
  std::int64_t sum = 0;
  bool is_right = shape_.rank() > 0;
  for (const std::int64_t size : blocks) is_right = is_right && size > 0 && (sum += size) <= shape_[0];
  if (!is_right || sum != shape_[0])
    throw UsageError(fmt::format("the first dim of parameter {} of shape {} has no blocks of {}", name_, shape_.str(),
                                 fmt::join(blocks, ", ")),
                     "give sizes above 0 that make up the dim");
  blocks_ = std::move(blocks);
}

Shape ParameterPart::whole_of(const Shape& part) const {
  std::vector<std::int64_t> dims(part.dims().begin(), part.dims().end());
  if (!is_whole()) dims.at(static_cast<std::size_t>(dim)) *= count;
  return Shape(dims);
}

void Parameter::set_owner(ParameterOwner* owner, ParameterPart part) {
  const Shape whole = part_.whole_of(shape_);
  std::vector<std::int64_t> dims(whole.dims().begin(), whole.dims().end());
  if (!part.is_whole()) {
    if (part.dim < 0) part.dim += whole.rank();
    if (part.dim < 0 || part.dim >= whole.rank() || whole[part.dim] % part.count != 0)
      throw UsageError(fmt::format("parameter {} of shape {} has no {} equal parts along dim {}", name_, whole.str(),
                                   part.count, part.dim),
                       "cut a dim that it has, by a number of ranks that divides it");
    dims[static_cast<std::size_t>(part.dim)] /= part.count;
    part.blocks = part.dim == 0 ? blocks_ : std::vector<std::int64_t>{};
    for (const std::int64_t block : part.blocks)
      if (block % part.count != 0)
        throw UsageError(fmt::format("parameter {} of shape {} has a block of {} rows, and so no {} equal parts of it",
                                     name_, whole.str(), block, part.count),
                         "cut it over a number of ranks that divides every block");
  }
  if (number_ != 0) owner_->context_of_ops()->storages().remove(std::exchange(number_, 0));
  if (owner != nullptr && owner->context_of_ops() != nullptr) number_ = owner->context_of_ops()->storages().add(*this);
  value_.number = number_;
  owner_ = owner;
  part_ = part;
  shape_ = Shape(dims);
}

void Parameter::refuse_use() const {
  if (owner_ != nullptr) owner_->refuse_use(*this);
  throw UsageError(
      fmt::format("parameter {} is used while it is not unsharded: it belongs to no unit", name_),
      "register its module by add_child() before shard_module(), or give a parameter that is ignored there a value");
}

void ParameterOwner::refuse_use(const Parameter& parameter) const {
  throw UsageError(fmt::format("parameter {} is used while its owner has not bound a value to it", parameter.name()));
}

}  // namespace zs
