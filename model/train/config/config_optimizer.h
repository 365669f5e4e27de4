#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/train/config/config_resolve.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// One entry of train.groups, "PATTERN: lr=FACTOR, decay=VALUE", either of them or both; PATTERN is a NamePattern.
/// Error(config) where the text is no such entry.
ParameterGroup parse_group(const std::string& text);

/// Patterns of the entries of train.groups.
std::vector<std::string> group_patterns(const Config& config);

/// Resolves what the optimizer's keys say together: which of them the chosen optimizer has no use for, and the default
/// of train.weight_decay.
void resolve_optimizer(ConfigDraft& draft);

/// Collective. Error(config) where a group has none of the model's parameters.
std::unique_ptr<Optimizer> make_optimizer(Executor& executor, const Config& config);

}  // namespace zs
