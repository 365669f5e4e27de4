#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/shard/execute/flat_parameter.h"
#include "runtime/tensor/context.h"

namespace zs {

/// Somebody has written into full parameters, and they go away without the weights having been written. Every rank
/// throws it alike, from its next synchronize.
class LostWrite final : public Error {
 public:
  explicit LostWrite(const std::string& unit);
};

/// Finds such writes: before what the schedule has gathered goes away, a rank's own part of it is compared, byte for
/// byte, with the shard that it was gathered from; of what an UnshardScope has, hashes with those from before. Of what
/// is written back the ranks compare hashes. Owned by an Executor; one host thread uses it. On return: enqueued on
/// compute, not done.
class WriteCheck {
 public:
  /// `everybody`: over all ranks, on compute.
  WriteCheck(Context& context, Communicator& everybody) : context_(context), everybody_(everybody) {}

  static std::int64_t hash_of(const Buffer& buffer);
  /// Masters were drawn or loaded: they are compared once more.
  void note_new_masters() { has_new_masters_ = true; }
  /// Compares what ranks that hold the same masters have of them, where these are new: an Error(ranks_disagree) on the
  /// compute stream of all. Collective.
  void compare_replicas(const std::vector<FlatParameter>& units);
  /// `full`: what compute has of the unit, in gathered_dtype.
  void compare(const FlatParameter& unit, const Buffer& full);
  /// Collective. Throws, on the compute stream, for a unit that differed since the last time.
  void settle(const std::vector<FlatParameter>& units);

  /// Values that an UnshardScope has of a unit: parameters, and after them gradients, each whole; empty ones are none.
  struct Values {
    std::vector<Buffer> buffers;
    std::vector<std::string> names;
  };
  /// i64: a hash of each.
  Memory hash(const FlatParameter& unit, const Values& values);
  /// Notes, for a scope for reading, before it ends, if the values are no more those of `hashes`.
  void note_changed(const FlatParameter& unit, const Values& values, const Memory& hashes);

  /// Record of what a rank wrote back in one scope of a unit.
  struct Written {
    std::string unit;
    std::vector<std::string> names;
    Memory rows;  // i64, of each rank: how often it has written back, and a hash of each value, as of the last time
    std::int64_t write_backs = 0;
  };
  void note_write_back(Written& written, const FlatParameter& unit, const Values& values);
  /// Collective, at a scope's end: whether all ranks have written back, and the same: an Error(ranks_disagree) on the
  /// compute stream where not.
  void compare(const Written& written);
  /// A scope was left without the other ranks: the next `compare_late`, collective, compares.
  void compare_later(Written written) { late_.push_back(std::move(written)); }
  void compare_late();

 private:
  Buffer row(const Written& written) const;
  void note(const FlatParameter& unit, const Buffer& a, const Buffer& b);
  /// Enqueues `body`, which says whether the unit was written to, as of what `reads` hold.
  template <class Body>
  void note_if(const FlatParameter& unit, std::vector<Buffer> reads, Body body);

  Context& context_;
  Communicator& everybody_;
  Memory found_;            // i64: a hash of the name of a unit that differed, or 0
  bool has_found_ = false;  // `found_` is written
  std::vector<Written> late_;
  bool has_new_masters_ = true;
};

/// `shard` (gathered_shard_elems) := this rank's own part of a unit's full parameters, on compute.
void copy_own_shard(Context& context, const FlatParameter& unit, const Buffer& full, const Buffer& shard);

}  // namespace zs
