#pragma once

#include <string>
#include <vector>

#include "model/train/config/config_resolve.h"
#include "runtime/shard/experts/expert_exchange.h"
#include "runtime/shard/placement/unit_policy.h"

namespace zs {

/// Checks what [experts] goes with.
void check_experts_over_ranks(ConfigDraft& draft);
/// Error(config) where so many ranks have no groups as [experts] says.
void check_expert_ranks(const Config& config, int ranks);
/// Axes of the job's grid, of whose last experts are dealt over the ranks; none: they are not dealt.
std::vector<GridAxis> expert_grid(const Config& config, int ranks);
/// True if [experts] speaks of the experts of this path.
bool places_experts(const Config& config, const std::string& path);
/// Error(config) where a pattern of experts.apply matches none of these paths.
void check_expert_paths(const Config& config, const std::vector<std::string>& paths);
/// Policy of a unit of such experts, which without [experts] would have this one.
UnitPolicy expert_policy(UnitPolicy policy, const Config& config, int ranks);
/// Lines for a plan of so many ranks: what the mixtures are, and where their experts lie. Empty: the model has none.
std::string describe_mixtures(const Config& config, int ranks);
/// Value of experts.dispatcher.
Dispatcher dispatcher_of(const Config& config);

}  // namespace zs
