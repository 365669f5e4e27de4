#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/launch_matmul.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/reduction.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

using Sizes = std::vector<std::int64_t>;

/// The dims in front of the last two.
Shape batch_of(const Shape& shape) { return Shape(shape.dims().first(static_cast<std::size_t>(shape.rank() - 2))); }
Shape with_matrix(const Shape& batch, std::int64_t rows, std::int64_t columns) {
  Sizes sizes(batch.dims().begin(), batch.dims().end());
  sizes.insert(sizes.end(), {rows, columns});
  return Shape(std::span<const std::int64_t>(sizes));
}

/// A product of two batches of one shape, and its gradients.
struct Batch {
  Shape shape;
  std::int64_t m, n, k;

  MatmulDims dims(std::int64_t rows, std::int64_t columns, std::int64_t inner) const {
    return {.m = rows, .n = columns, .k = inner, .batch = shape.numel()};
  }
};

Tensor product(const char* name, const Batch& batch, const Tensor& a, const Tensor& b, const MatmulDims& dims) {
  Tensor c = Tensor::empty(a.context(), with_matrix(batch.shape, dims.m, dims.n), a.dtype());
  if (c.numel() > 0) launch_matmul(a.context(), name, {c.buffer(), a.buffer(), b.buffer(), {}}, dims);
  return c;
}

Tensor multiplied(const Tensor& a, const Tensor& b) {
  const Batch batch{batch_of(a.shape()), a.shape()[-2], b.shape()[-1], a.shape()[-1]};
  Tensor c = product("matmul", batch, a, b, batch.dims(batch.m, batch.n, batch.k));
  record_op(c, "matmul", {a, b}, {},
            [batch, a = a.detach(), b = b.detach(), wants_a = a.requires_grad(),
             wants_b = b.requires_grad()](const Tensor& dc) {
              std::vector<Tensor> grads(2);
              MatmulDims by_a = batch.dims(batch.m, batch.k, batch.n), by_b = batch.dims(batch.k, batch.n, batch.m);
              by_a.transpose_b = by_b.transpose_a = true;
              if (wants_a) grads[0] = product("matmul_da", batch, dc, b, by_a);
              if (wants_b) grads[1] = product("matmul_db", batch, a, dc, by_b);
              return grads;
            });
  return c;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  require_float("matmul", "a", a);
  require_float("matmul", "b", b);
  const Shape left = a.shape(), right = b.shape();
  if (left.rank() < 2 || right.rank() < 2 || left[-1] != right[-2] || a.dtype() != b.dtype())
    throw UsageError(fmt::format("op matmul of {} and {}", a.describe(), b.describe()),
                     "give (..., m, k) and (..., k, n) of one dtype; reshape a vector to a matrix");
  if (right.rank() == 2) {  // one product of all rows
    const std::int64_t k = left[-1], rows = k == 0 ? batch_of(left).numel() * left[-2] : a.numel() / k;
    return multiplied(a.reshape({rows, k}), b).reshape(with_matrix(batch_of(left), left[-2], right[-1]));
  }
  const std::optional<Shape> batch = common_shape(batch_of(left), batch_of(right));
  if (!batch)
    throw UsageError(fmt::format("op matmul of {} and {}", a.describe(), b.describe()),
                     "dims in front of the last two are alike, or 1");
  const Shape whole_left = with_matrix(*batch, left[-2], left[-1]),
              whole_right = with_matrix(*batch, right[-2], right[-1]);
  return multiplied(left == whole_left ? a : expand(a, whole_left), right == whole_right ? b : expand(b, whole_right));
}

}  // namespace zs
