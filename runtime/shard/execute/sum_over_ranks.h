#pragma once

#include "runtime/shard/execute/executor.h"
#include "runtime/tensor/tensor.h"

namespace zs {

/// The sum of a scalar over the ranks that share a loss, f32, the same on each. Carried in f64 and rounded once, so
/// that counts are exact up to 2^24. Without gradient. Collective, on the compute stream; on return: enqueued, not
/// done.
///
/// So that each of the targets that count in a step weighs alike, however unevenly they are spread over micro-batches
/// and ranks, a loss that is the sum over its own is divided by the number of all of them, known before the step's
/// first backward, under Division::Rule::none:
///
///     const Tensor counted = zs::sum_over_ranks(model.executor(), own_counted);   // of this rank's micro-batches
///     for each micro-batch: micro_batch.backward(sum_of_losses / counted);
Tensor sum_over_ranks(Executor& executor, const Tensor& own);

}  // namespace zs
