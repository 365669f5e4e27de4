#pragma once

#include <optional>

#include "runtime/shard/precision.h"
#include "runtime/shard/scheme.h"

namespace zs {

/// What one unit does otherwise than the rest of its runtime. Alike on every rank.
struct UnitPolicy {
  /// Instead of the scheme's, and whether or not the ends are kept: a number of ranks only where it is the scheme's own. Not where the
  /// scheme does not shard parameters.
  std::optional<Reshard> reshard_after_forward = {};
  std::optional<Precision> precision = {};  ///< instead of the runtime's
  bool operator==(const UnitPolicy&) const = default;
};

}  // namespace zs
