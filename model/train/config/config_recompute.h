#pragma once

#include <string>
#include <vector>

#include "model/train/config/config_resolve.h"
#include "runtime/base/name_pattern.h"

namespace zs {

/// Entry of train.recompute: the part that blocks whose names match recompute.
struct RecomputeEntry {
  NamePattern pattern;
  std::string part;  ///< "none", "attention" or "block"
};

/// True if the plan is to choose.
bool is_recompute_auto(const std::vector<std::string>& entries);

/// The first that matches a block counts; one that none matches is recomputed in no part. Error(config) where they are
/// no such entries, or "auto".
std::vector<RecomputeEntry> recompute_entries(const std::vector<std::string>& entries);

/// True if some blocks may be recomputed as a whole.
bool may_recompute_blocks(const std::vector<std::string>& entries);

void check_recompute(ConfigDraft& draft);

}  // namespace zs
