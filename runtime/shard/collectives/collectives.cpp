#include "runtime/shard/collectives/collectives.h"

#include <vector>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/context.h"
#include "runtime/tensor/layout.h"

namespace zs {
namespace {

void check_input(const char* name, const Tensor& x) {
  if (x && x.dtype() == DType::f32) return;
  throw UsageError(fmt::format("{}() of {}", name, x ? x.describe() : "an empty tensor"), "give a tensor of f32");
}

/// Sum over the ranks of x times `factor`, in memory of its own. Records nothing.
Tensor all_reduced(Communicator& ranks, const char* name, const Tensor& x, float factor = 1) {
  const NoGradGuard no_grad(x.context());
  Tensor sum = x * factor;
  ranks.all_reduce(x.context().stream(), name, sum.buffer(), ReduceOp::sum);
  return sum;
}

}  // namespace

Tensor mean_over_ranks(Communicator& ranks, const Tensor& x) {
  check_input("mean_over_ranks", x);
  const float share = 1.0f / static_cast<float>(ranks.size());
  Tensor mean = all_reduced(ranks, "mean", x, share);
  record_op(mean, "mean_over_ranks", {x}, {}, [&ranks, share](const Tensor& grad) {
    return std::vector{all_reduced(ranks, "grad of mean", grad, share)};
  });
  return mean;
}

Tensor sum_of_parts(Communicator& ranks, const Tensor& x) {
  check_input("sum_of_parts", x);
  Tensor sum = all_reduced(ranks, "sum of parts", x);
  record_op(sum, "sum_of_parts", {x}, {}, [](const Tensor& grad) { return std::vector{grad}; });
  return sum;
}

Tensor input_of_parts(Communicator& ranks, const Tensor& x) {
  check_input("input_of_parts", x);
  return on_gradient(x, [&ranks](const Tensor& grad) { return all_reduced(ranks, "grad of parts", grad); });
}

namespace {

/// The ranks' tensors along a dim. Records nothing.
Tensor gathered(Communicator& ranks, const char* call, const char* name, const Tensor& x, int dim) {
  check_input(call, x);
  if (dim < 0 || dim >= x.shape().rank())
    throw UsageError(fmt::format("{}() of {} along dim {}", call, x.describe(), dim),
                     "name a dim that it has, counted from the first");
  Context& context = x.context();
  const NoGradGuard no_grad(context);
  const Tensor part = x * 1.0f;  // dense
  const Tensor all = Tensor::empty(context, {ranks.size() * x.numel()}, DType::f32);
  ranks.all_gather(context.stream(), name, part.buffer(), all.buffer());
  std::vector<Tensor> parts;
  for (int rank = 0; rank < ranks.size(); ++rank)
    parts.push_back(slice(all, 0, rank * x.numel(), x.numel()).reshape(x.shape()));
  return concat(parts, dim);
}

}  // namespace

Tensor concat_over_ranks(Communicator& ranks, const Tensor& x, int dim) {
  Tensor all = gathered(ranks, "concat_over_ranks", "concat", x, dim);
  const std::int64_t length = x.shape()[dim], own = ranks.rank() * length;
  record_op(all, "concat_over_ranks", {x}, {},
            [dim, own, length](const Tensor& grad) { return std::vector{slice(grad, dim, own, length) * 1.0f}; });
  return all;
}

Tensor all_gather(Communicator& ranks, const Tensor& x, int dim) {
  Tensor all = gathered(ranks, "all_gather", "gather", x, dim);
  const std::int64_t length = x.shape()[dim], own = ranks.rank() * length;
  record_op(all, "all_gather", {x}, {}, [&ranks, dim, own, length](const Tensor& grad) {
    const Tensor sum = all_reduced(ranks, "grad of gather", grad);
    const NoGradGuard no_grad(grad.context());
    return std::vector{slice(sum, dim, own, length) * 1.0f};
  });
  return all;
}

}  // namespace zs
