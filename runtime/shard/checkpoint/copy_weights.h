#pragma once

#include "runtime/shard/execute/executor.h"

namespace zs {

/// Weights of another model: those of `to` become factor times those of `from` plus 1 - factor times their own, on the
/// f32 master weights that each rank holds, without communication; a factor of 1 copies. Buffers, as batch norm's
/// statistics, are copied. For averages of a model (EMA) and target networks, which need no optimizer. Both models have
/// the same units with the same parameters, and one placement and layout; `to` may be frozen, and hold a copy once,
/// rounded (ShardOptions::frozen_dtype). Between steps; collective where `to` is zero-copy; on return: enqueued, not
/// done. UsageError where they differ, naming the first difference, where the host keeps masters, or where there are
/// none to average.
void copy_weights(Executor& from, Executor& to, float factor = 1);

}  // namespace zs
