#pragma once

/// \file zshard/fully_shard.h
/// zs::fully_shard makes modules units, and a model a zs::ShardedModel whose parameters are gathered when they are used
/// and freed after that. Strategies, meshes, precision and policies are its options. Collective: every rank makes the
/// same calls. What is forgotten or done twice is a zs::UsageError that names it.

#include "model/nn/tensor_partition.h"
#include "model/sharding/fully_shard.h"
#include "model/sharding/shard_plan.h"
#include "runtime/shard/placement/mixed_precision.h"
#include "runtime/shard/placement/scheme.h"
#include "runtime/shard/placement/unit_policy.h"
