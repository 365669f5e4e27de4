#pragma once

#include "runtime/shard/flat_parameter.h"
#include "runtime/shard/shard_groups.h"
#include "runtime/tensor/context.h"

namespace zs {

/// Compute work has written into full parameters, and they go away without the weights having been written. Every rank throws it alike,
/// from its next synchronize.
class LostWrite final : public Error {
 public:
  explicit LostWrite(const std::string& unit);
};

/// Finds such writes: before full parameters go away, a rank's own part of them is compared, byte for byte, with the shard that it was
/// gathered from. What each of the others was written into its own rank sees, for ranks write alike. Owned by an Executor; one host
/// thread uses it. On return: enqueued on compute, not done.
class WriteCheck {
 public:
  WriteCheck(Context& context, ShardGroups& groups) : context_(context), groups_(groups) {}

  /// `full`: what compute has of the unit, in gathered_dtype.
  void compare(const FlatParameter& unit, const Buffer& full);
  /// Collective. Throws, on the compute stream, for a unit that differed since the last time.
  void settle(const std::vector<FlatParameter>& units);

 private:
  void note(const FlatParameter& unit, const Buffer& a, const Buffer& b);

  Context& context_;
  ShardGroups& groups_;
  Memory found_;            // i64: a hash of the name of a unit that differed, or 0
  bool has_found_ = false;  // it is written
};

/// `shard` (gathered_shard_elems) := this rank's own part of a unit's full parameters, on compute.
void copy_own_shard(Context& context, const FlatParameter& unit, const Buffer& full, const Buffer& shard);

}  // namespace zs
