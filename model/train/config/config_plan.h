#pragma once

#include "model/sharding/shard_plan.h"
#include "model/train/config/config_resolve.h"

namespace zs {

/// Checks the keys of `plan.*` by themselves and against the others; what they say of a model is seen when it is there
/// (resolve).
void resolve_plan(ConfigDraft& draft);

/// Plan that `plan.*` describes, where shard.units is "plan".
Plan plan_of(const Config& config);

/// True if plan.strategy names one that has small groups.
bool has_groups_by_plan(const Config& config);

/// Error(config) where the plan's own strategies, or groups in between, do not go with so many ranks.
void check_plan_ranks(const Config& config, int ranks);

}  // namespace zs
