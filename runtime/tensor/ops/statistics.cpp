#include "runtime/tensor/statistics.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/pointwise.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

std::vector<int> all_dims(const char* op, const Tensor& x) {
  require_float(op, "x", x);
  std::vector<int> dims(static_cast<std::size_t>(x.shape().rank()));
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

/// Square root of sums of squares, f32; where they are 0 it has no gradient.
Tensor root(const Tensor& squares) {
  const Tensor is_above = gt(squares, 0.0f);
  return sqrt(where(is_above, squares, 1.0f)) * is_above;
}

Tensor spread(const char* op, const Tensor& x, const std::vector<int>& dims, bool keeps_dims, int correction) {
  require_float(op, "x", x);
  std::int64_t count = 1;
  for (const int dim : dims) count *= x.shape()[dim_of(op, x.shape(), dim)];
  if (correction < 0 || count <= correction)
    throw UsageError(fmt::format("op {}: of {} elements each, with a correction of {}", op, count, correction),
                     "give more elements, or a correction of 0");
  const Tensor wide = cast(x, DType::f32), squares = square(wide - mean(wide, dims, true));
  return sum(squares, dims, keeps_dims) * (1.0f / static_cast<float>(count - correction));
}

}  // namespace

Tensor min(const Tensor& x, const std::vector<int>& dims, bool keeps_dims) {
  require_float("min", "x", x);
  return neg(max(neg(x), dims, keeps_dims));
}
Tensor min(const Tensor& x) { return min(x, all_dims("min", x)); }

Tensor argmin(const Tensor& x, int dim) {
  require_float("argmin", "x", x);
  return argmax(neg(x.detach()), dim);
}

Tensor variance(const Tensor& x, const std::vector<int>& dims, bool keeps_dims, int correction) {
  return cast(spread("variance", x, dims, keeps_dims, correction), x.dtype());
}
Tensor variance(const Tensor& x) { return variance(x, all_dims("variance", x)); }

Tensor deviation(const Tensor& x, const std::vector<int>& dims, bool keeps_dims, int correction) {
  return cast(root(spread("deviation", x, dims, keeps_dims, correction)), x.dtype());
}
Tensor deviation(const Tensor& x) { return deviation(x, all_dims("deviation", x)); }

Tensor norm(const Tensor& x, const std::vector<int>& dims, bool keeps_dims) {
  require_float("norm", "x", x);
  return cast(root(sum(square(cast(x, DType::f32)), dims, keeps_dims)), x.dtype());
}
Tensor norm(const Tensor& x) { return norm(x, all_dims("norm", x)); }

Tensor normalize(const Tensor& x, int dim, float least) {
  require_float("normalize", "x", x);
  const Tensor wide = cast(x, DType::f32), length = norm(wide, {dim}, true);
  return cast(wide / where(gt(length, least), length, least), x.dtype());
}

Tensor logsumexp(const Tensor& x, const std::vector<int>& dims, bool keeps_dims) {
  require_float("logsumexp", "x", x);
  const Tensor wide = cast(x, DType::f32);
  // Finite, so that lines of infinities give themselves
  const Tensor largest = clamp(max(wide.detach(), dims, true), -3e38f, 3e38f);
  const Tensor sums = log(sum(exp(wide - largest), dims, keeps_dims));
  return cast(sums + largest.reshape(sums.shape()), x.dtype());
}

}  // namespace zs
