#include "runtime/shard/collectives/collectives.h"

#include <vector>

#include "runtime/base/random.h"
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

/// Sum over the ranks of x times `factor`, in memory of its own. Records nothing. Nothing moves where launches are left
/// out, as the elements are not used.
Tensor all_reduced(Communicator& ranks, const char* name, const Tensor& x, float factor = 1) {
  const NoGradGuard no_grad(x.context());
  Tensor sum = x * factor;
  if (x.context().mode().unfilled == nullptr) ranks.all_reduce(x.context().stream(), name, sum.buffer(), ReduceOp::sum);
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

namespace {

std::int64_t hash_of(const Buffer& values) {
  const auto* const words = static_cast<const std::uint32_t*>(values.data);
  std::uint64_t hash = 0;
  for (std::int64_t i = 0; i < values.elems; ++i) hash = mix64(hash ^ words[i]);
  return static_cast<std::int64_t>(hash);
}

}  // namespace

void check_alike(Communicator& ranks, const std::string& axis, const std::string& what, const Tensor& x) {
  if (!x || (x.dtype() != DType::i32 && x.dtype() != DType::f32))
    throw UsageError(fmt::format("check_alike() of {}", x ? x.describe() : "an empty tensor"), "give i32 or f32");
  Context& context = x.context();
  if (ranks.size() == 1 || context.device().kind() == DeviceKind::cuda) return;
  const NoGradGuard no_grad(context);
  const Tensor hashes = Tensor::empty(context, {2}, DType::i64);
  const Buffer in = x.buffer(), both = hashes.buffer();
  context.launch({"hash_input", {in}, {both}}, [in, both](ExecContext&) {
    both.as<std::int64_t>()[0] = hash_of(in);
    both.as<std::int64_t>()[1] = ~both.as<std::int64_t>()[0];
  });
  ranks.all_reduce(context.stream(), "inputs", both, ReduceOp::max);
  context.launch({"compare_inputs", {both}, {}}, [both, axis, what](ExecContext&) {
    if (both.as<std::int64_t>()[0] == ~both.as<std::int64_t>()[1]) return;
    throw Error(ExitCode::ranks_disagree,
                fmt::format("ranks along axis {}, which read the same samples, have different {}", axis, what), {},
                "give all ranks along it one batch: ShardedRuntime::data_share() says which");
  });
}

}  // namespace zs
