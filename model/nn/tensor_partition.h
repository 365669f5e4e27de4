#pragma once

#include <string>

#include "model/nn/module.h"

namespace zs {

/// Ranks that have the other parts of a module's parameter; null where this one has all. They compute one loss, and
/// outlive the model. UsageError where they read different data.
Communicator* find_part_ranks(const Module& module, const Parameter& parameter);

/// Partition of a unit's products over an axis whose ranks read the same data: attention by heads, MLPs by their hidden
/// dim, the token embedding and the head by the vocabulary. What belongs to units below it (`is_unit`) is theirs. Its
/// patterns are the same for blocks that are built alike. Without an axis where the unit has no such product.
Partition tensor_partition(const Module& unit, const IsUnit& is_unit, const std::string& axis);

}  // namespace zs
