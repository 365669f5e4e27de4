#pragma once

#include <optional>

#include "runtime/shard/placement/division.h"
#include "runtime/shard/placement/frozen_format.h"
#include "runtime/shard/placement/gradient_reduction.h"
#include "runtime/shard/placement/mixed_precision.h"
#include "runtime/shard/placement/partition.h"
#include "runtime/shard/placement/residence.h"
#include "runtime/shard/placement/scheme.h"

namespace zs {

/// Policy of one unit, where it differs from the rest of its runtime. Alike on every rank.
struct UnitPolicy {
  /// Reshard of the unit, instead of the scheme's, and whether or not the ends are kept. Only where parameters are
  /// sharded; a number of ranks is one that divides those over which they are, and does not go with nested or a mesh.
  std::optional<Reshard> reshard_after_forward = {};
  std::optional<MixedPrecisionPolicy> precision = {};  ///< instead of the runtime's
  /// Scheme of the unit instead of the runtime's, but for `deterministic`, which is one for all.
  std::optional<SchemeOptions> scheme = {};
  std::optional<Division> division = {};    ///< instead of the runtime's
  std::optional<Residence> residence = {};  ///< instead of the runtime's
  Partition partition = {};                 ///< cut of its parameters over an axis of the grid
  /// Freezes the unit: its parameters are never trained, as set_trainable(false) has it for a while: no gradient of
  /// theirs is held, and no optimizer has any state for them.
  bool is_frozen = false;
  /// Holds and gathers the weights of the unit, which is frozen, in this format; it is decoded for each use, and freed
  /// after it. null: ShardOptions::frozen_dtype. Where the strategy does not shard parameters every rank holds all.
  const FrozenFormat* frozen_format = nullptr;
  const GradientReduction* reduction = nullptr;  ///< instead of the runtime's; null: that
  bool operator==(const UnitPolicy&) const = default;
};

/// Error(config) where the policy has a format that it, or a run that checks writes, does not go with.
void check_frozen_format(const UnitPolicy& policy, bool checks_writes, std::string_view unit);
/// Scheme of a unit in a format, which is there in full only while it is used: the one that keeps nothing else.
SchemeOptions scheme_of_format(SchemeOptions scheme);

}  // namespace zs
