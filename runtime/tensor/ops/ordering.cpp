#include "runtime/tensor/ordering.h"

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

void require_number(const char* op, const Tensor& x) {
  if (!x || x.dtype() != DType::i32) require_float(op, "x", x);
}

Tensor ordered_ids(const Tensor& x, int dim, std::int64_t kept, bool is_descending) {
  Context& context = x.context();
  Tensor ids = Tensor::empty(context, with_size(x.shape(), dim, kept), DType::i32);
  if (ids.numel() == 0) return ids;
  const LineDims dims = line_dims(x.shape(), dim, kept);
  const Buffer out = ids.buffer(), in = x.buffer();
  context.launch({"order", {in}, {out}, context.kernels().scratch.order_lines(context.threads(), dims)},
                 [&kernels = context.kernels(), out, in, dims, is_descending](ExecContext& exec) {
                   kernels.order_lines(exec, out, in, dims, is_descending);
                 });
  return ids;
}

/// Sums of each line's elements up to this one, or from this one on.
Tensor running_sums(const Tensor& x, int dim, bool is_backward) {
  Context& context = x.context();
  Tensor y = Tensor::empty(context, x.shape(), x.dtype());
  if (y.numel() == 0) return y;
  const LineDims dims = line_dims(x.shape(), dim, x.shape()[dim]);
  const Buffer out = y.buffer(), in = x.buffer();
  context.launch({"cumsum", {in}, {out}},
                 [&kernels = context.kernels(), out, in, dims, is_backward](ExecContext& exec) {
                   kernels.sum_lines(exec, out, in, dims, is_backward);
                 });
  return y;
}

}  // namespace

Ordered topk(const Tensor& x, std::int64_t count, int dim, bool is_largest) {
  require_number("topk", x);
  const int d = dim_of("topk", x.shape(), dim);
  if (count < 0 || count > x.shape()[d])
    throw UsageError(fmt::format("op topk: {} of dim {} of {}", count, d, x.describe()), "ask for no more than it has");
  const Tensor ids = ordered_ids(x, d, count, is_largest);
  return {gather(x, d, ids), ids};
}

Ordered sort(const Tensor& x, int dim, bool is_descending) {
  require_number("sort", x);
  return topk(x, x.shape()[dim_of("sort", x.shape(), dim)], dim, is_descending);
}

Tensor argsort(const Tensor& x, int dim, bool is_descending) {
  require_number("argsort", x);
  const int d = dim_of("argsort", x.shape(), dim);
  return ordered_ids(x, d, x.shape()[d], is_descending);
}

Tensor cumsum(const Tensor& x, int dim) {
  require_number("cumsum", x);
  const int d = dim_of("cumsum", x.shape(), dim);
  Tensor y = running_sums(x, d, false);
  if (x.dtype() != DType::i32)
    record_op(y, "cumsum", {x}, {}, [d](const Tensor& dy) { return std::vector<Tensor>{running_sums(dy, d, true)}; });
  return y;
}

}  // namespace zs
