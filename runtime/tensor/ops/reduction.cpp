#include "runtime/tensor/reduction.h"

#include <algorithm>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

/// Dims that a reduction goes over, and the shapes of its result.
struct Over {
  DimSet dims = 0;
  std::int64_t elems = 1;  // reduced into one
  Shape kept, result;      // with and without dims of size 1
};

Over over(const char* op, const Shape& shape, const std::vector<int>& dims, bool keeps_dims) {
  Over result;
  result.kept = shape;
  for (const int dim : dims) {
    const int d = dim_of(op, shape, dim);
    if ((result.dims >> d & 1u) != 0) throw UsageError(fmt::format("op {}: dim {} twice", op, d));
    result.dims |= 1u << d;
    result.elems *= shape[d];
    result.kept = with_size(result.kept, d, 1);
  }
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < shape.rank(); ++d)
    if (keeps_dims || (result.dims >> d & 1u) == 0) sizes.push_back(result.kept[d]);
  result.result = Shape(std::span<const std::int64_t>(sizes));
  return result;
}

std::vector<int> all_dims(const Tensor& x) {
  std::vector<int> dims;
  for (int d = 0; x && d < x.shape().rank(); ++d) dims.push_back(d);
  return dims;
}

Tensor summed(const char* name, const Tensor& x, const Over& over, float factor) {
  Tensor y = reduced("sum", x, ReduceKind::sum, over.dims, x.dtype(), factor).reshape(over.result);
  record_op(y, name, {x}, {}, [shape = x.shape(), over, factor](const Tensor& dy) {
    const Tensor lines = dy.detach().reshape(over.kept);
    return std::vector<Tensor>{computed("sum_backward", dy.context(), shape, dy.dtype(), MapOp::mul, {lines, factor})};
  });
  return y;
}

}  // namespace

Tensor sum(const Tensor& x, const std::vector<int>& dims, bool keeps_dims) {
  require_float("sum", "x", x);
  return summed("sum", x, over("sum", x.shape(), dims, keeps_dims), 1.0f);
}
Tensor sum(const Tensor& x) { return sum(x, all_dims(x)); }

Tensor mean(const Tensor& x, const std::vector<int>& dims, bool keeps_dims) {
  require_float("mean", "x", x);
  const Over what = over("mean", x.shape(), dims, keeps_dims);
  return summed("mean", x, what, 1.0f / static_cast<float>(std::max<std::int64_t>(what.elems, 1)));
}
Tensor mean(const Tensor& x) { return mean(x, all_dims(x)); }

Tensor max(const Tensor& x, const std::vector<int>& dims, bool keeps_dims) {
  require_float("max", "x", x);
  const Over what = over("max", x.shape(), dims, keeps_dims);
  if (what.elems == 0) throw UsageError(fmt::format("op max: of no elements of {}", x.describe()));
  Tensor y = reduced("max", x, ReduceKind::max, what.dims, x.dtype()).reshape(what.result);
  record_op(y, "max", {x}, {}, [x = x.detach(), y = y.detach(), what](const Tensor& dy) {
    Context& context = dy.context();
    const Tensor largest = computed("max_places", context, x.shape(), DType::f32, MapOp::eq, {x, y.reshape(what.kept)});
    const Tensor count = reduced("max_count", largest, ReduceKind::sum, what.dims, DType::f32);
    const Tensor share =
        computed("max_share", context, what.kept, DType::f32, MapOp::div, {dy.detach().reshape(what.kept), count});
    return std::vector<Tensor>{computed("max_backward", context, x.shape(), x.dtype(), MapOp::mul, {largest, share})};
  });
  return y;
}
Tensor max(const Tensor& x) { return max(x, all_dims(x)); }

Tensor argmax(const Tensor& x, int dim) {
  require_float("argmax", "x", x);
  const Over what = over("argmax", x.shape(), {dim}, false);
  if (what.elems == 0) throw UsageError(fmt::format("op argmax: of no elements of {}", x.describe()));
  return reduced("argmax", x, ReduceKind::argmax, what.dims, DType::i32).reshape(what.result);
}

}  // namespace zs
