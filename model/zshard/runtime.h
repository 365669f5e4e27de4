#pragma once

/// \file zshard/runtime.h
/// What a zs::ShardedModel stands on, for who schedules by hand: zs::ShardedRuntime, scopes that unshard parameters to
/// read or write them, sums over ranks. Between micro-batches, alike on every rank.

#include "runtime/shard/checkpoint/copy_weights.h"
#include "runtime/shard/collectives/collectives.h"
#include "runtime/shard/execute/sum_over_ranks.h"
#include "runtime/shard/runtime/sharded_runtime.h"
#include "runtime/shard/runtime/unshard_scope.h"
