#include "runtime/shard/execute/sum_over_ranks.h"

#include "runtime/base/usage_error.h"

namespace zs {

Tensor sum_over_ranks(Executor& executor, const Tensor& own) {
  if (!own || own.numel() != 1 || own.dtype() != DType::f32)
    throw UsageError(fmt::format("sum_over_ranks() of {}", own ? own.describe() : "an empty tensor"),
                     "pass an f32 scalar; of several numbers, one after the other");
  Context& context = executor.context();
  const Tensor all = Tensor::empty(context, {executor.loss_comm().size()}, DType::f32),
               sum = Tensor::empty(context, {}, DType::f32);
  executor.loss_comm().all_gather(context.stream(), "sum_over_ranks", own.buffer(), all.buffer());
  context.launch({"sum_over_ranks", {all.buffer()}, {sum.buffer()}},
                 [&kernels = context.kernels(), out = sum.buffer(), in = all.buffer()](ExecContext& exec) {
                   kernels.sum(exec, out, in, 1.0f);
                 });
  return sum;
}

}  // namespace zs
