#pragma once

#include "model/sharding/shard_plan.h"

namespace zs {

/// Says of each unit of a resolved plan, but for the root that no pattern matches, what is gathered ahead when it runs,
/// as far as the plan wants lists. Entries are in the order of the patterns, and after each entry what later patterns
/// match within its module.
void set_prefetch_lists(ResolvedPlan& plan);

/// True if `inner` is the module `outer` or is below it.
bool is_within(const Module& inner, const Module& outer);

}  // namespace zs
