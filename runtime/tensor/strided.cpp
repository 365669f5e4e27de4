#include "runtime/tensor/strided.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "runtime/base/usage_error.h"

namespace zs {
namespace {

using Strides = std::array<std::int64_t, Shape::kMaxDims>;

std::size_t at(int dim) { return static_cast<std::size_t>(dim); }

std::int64_t product(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

/// The elements from the first one to the last one of a shape.
Buffer span_of(const Buffer& buffer, const Shape& shape, const Strides& strides) {
  std::int64_t last = 0;
  for (int d = 0; d < shape.rank(); ++d) last += (shape[d] - 1) * strides[at(d)];
  return buffer.slice(0, last + 1);
}

/// Shape of these elements in the same order with as few dims as these strides allow, at least one.
Shape merged(const Shape& shape, const std::vector<Strides*>& all) {
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] == 1) continue;
    const std::size_t before = sizes.size() - 1, to = sizes.size();
    const bool joins = !sizes.empty() && std::all_of(all.begin(), all.end(), [&](const Strides* strides) {
      return (*strides)[before] == (*strides)[at(d)] * shape[d];
    });
    for (Strides* strides : all) (*strides)[joins ? before : to] = (*strides)[at(d)];
    if (joins) {
      sizes.back() *= shape[d];
    } else {
      sizes.push_back(shape[d]);
    }
  }
  if (sizes.empty()) sizes.push_back(1);
  return Shape(std::span<const std::int64_t>(sizes));
}

Strides dense_strides(const Shape& shape) {
  Strides strides{};
  std::int64_t step = 1;
  for (int d = shape.rank() - 1; d >= 0; step *= shape[d], --d) strides[at(d)] = step;
  return strides;
}

}  // namespace

View view_of(const Tensor& x) { return {x.buffer(), x.shape(), dense_strides(x.shape())}; }

View narrow(View view, int dim, std::int64_t first, std::int64_t count) {
  const std::int64_t offset = std::min(first * view.strides[at(dim)], view.buffer.elems);
  view.buffer = view.buffer.slice(offset, view.buffer.elems - offset);
  view.shape = with_size(view.shape, dim, count);
  return view;
}

View permuted(const View& view, const std::vector<int>& order) {
  View result{view.buffer, {}, {}};
  std::vector<std::int64_t> sizes;
  for (std::size_t d = 0; d < order.size(); ++d) {
    sizes.push_back(view.shape[order[d]]);
    result.strides[d] = view.strides[at(order[d])];
  }
  result.shape = Shape(std::span<const std::int64_t>(sizes));
  return result;
}

View broadcast(const View& view, const Shape& shape) {
  const int missing = shape.rank() - view.shape.rank();
  ZS_CHECK(missing >= 0, "{} as {}", view.shape.str(), shape.str());
  View result{view.buffer, shape, {}};
  for (int d = missing; d < shape.rank(); ++d) {
    const std::int64_t size = view.shape[d - missing];
    ZS_CHECK(size == shape[d] || size == 1, "{} as {}", view.shape.str(), shape.str());
    result.strides[at(d)] = size == 1 ? 0 : view.strides[at(d - missing)];
  }
  return result;
}

void map_into(const char* name, Context& context, const View& out, MapOp op, std::initializer_list<Operand> operands) {
  if (out.shape.numel() == 0) return;
  Map map{.op = op, .shape = {}, .out = {out.buffer, out.strides}};
  OpInfo info{name, {}, {span_of(out.buffer, out.shape, out.strides)}};
  if (info.writes.front().elems != out.shape.numel()) info.reads.push_back(info.writes.front());
  std::vector<Strides*> strides{&map.out.strides};
  std::size_t k = 0;
  for (const Operand& operand : operands) {
    map.constants[k] = operand.constant;
    if (operand.view) {
      const View view = broadcast(*operand.view, out.shape);
      map.in[k] = {view.buffer, view.strides};
      strides.push_back(&map.in[k].strides);
      info.reads.push_back(span_of(view.buffer, view.shape, view.strides));
    }
    ++k;
  }
  map.shape = merged(out.shape, strides);
  context.launch(std::move(info), [&kernels = context.kernels(), map](ExecContext& exec) { kernels.map(exec, map); });
}

Tensor computed(const char* name, Context& context, const Shape& shape, DType dtype, MapOp op,
                std::initializer_list<Operand> operands) {
  Tensor y = Tensor::empty(context, shape, dtype);
  map_into(name, context, view_of(y), op, operands);
  return y;
}

LineDims line_dims(const Shape& shape, int dim, std::int64_t count, bool each_its_own) {
  const auto sizes = shape.dims();
  const auto d = static_cast<std::size_t>(dim);
  return {product(sizes.first(d)), sizes[d], count, product(sizes.subspan(d + 1)), each_its_own};
}

Tensor reduced(const char* name, const Tensor& x, ReduceKind op, DimSet dims, DType dtype, float factor) {
  Context& context = x.context();
  const View view = view_of(x);
  std::vector<int> kept, over;
  Shape shape = x.shape();
  for (int d = 0; d < x.shape().rank(); ++d) {
    const bool is_over = (dims >> d & 1u) != 0;
    (is_over ? over : kept).push_back(d);
    if (is_over) shape = with_size(shape, d, 1);
  }
  Tensor y = Tensor::empty(context, shape, dtype);
  if (y.numel() == 0) return y;
  View kept_view = permuted(view, kept), over_view = permuted(view, over);
  Reduce reduce{.op = op, .kept = {}, .reduced = {}, .out = y.buffer(), .in = x.buffer(), .factor = factor};
  reduce.kept = merged(kept_view.shape, {&kept_view.strides});
  reduce.reduced = merged(over_view.shape, {&over_view.strides});
  reduce.kept_strides = kept_view.strides;
  reduce.reduced_strides = over_view.strides;
  context.launch({name, {reduce.in}, {reduce.out}},
                 [&kernels = context.kernels(), reduce](ExecContext& exec) { kernels.reduce(exec, reduce); });
  return y;
}

Tensor sum_to(const Tensor& dy, const Shape& shape) {
  if (dy.shape() == shape) return dy;
  const int missing = dy.shape().rank() - shape.rank();
  DimSet dims = 0;
  for (int d = 0; d < dy.shape().rank(); ++d)
    if (d < missing || (shape[d - missing] == 1 && dy.shape()[d] != 1)) dims |= 1u << d;
  return reduced("sum_to", dy, ReduceKind::sum, dims, dy.dtype()).reshape(shape);
}

int dim_of(const char* op, const Shape& shape, int dim) {
  if (dim >= -shape.rank() && dim < shape.rank()) return dim < 0 ? dim + shape.rank() : dim;
  if (shape.rank() == 0)
    throw UsageError(fmt::format("op {}: dim {} of a scalar, which has none", op, dim), "reshape it to (1)");
  throw UsageError(fmt::format("op {}: dim {} of {}", op, dim, shape.str()),
                   fmt::format("dims are 0 to {}, or -1 for the last one", shape.rank() - 1));
}

Shape with_size(const Shape& shape, int dim, std::int64_t size) {
  std::vector<std::int64_t> sizes(shape.dims().begin(), shape.dims().end());
  sizes[at(dim)] = size;
  return Shape(std::span<const std::int64_t>(sizes));
}

std::optional<Shape> common_shape(const Shape& a, const Shape& b) {
  const Shape &longer = a.rank() >= b.rank() ? a : b, &shorter = a.rank() >= b.rank() ? b : a;
  Shape common = longer;
  for (int d = 1; d <= shorter.rank(); ++d) {
    if (shorter[-d] == longer[-d] || shorter[-d] == 1) continue;
    if (longer[-d] != 1) return {};
    common = with_size(common, longer.rank() - d, shorter[-d]);
  }
  return common;
}

}  // namespace zs
