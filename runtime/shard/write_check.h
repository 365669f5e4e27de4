#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/shard/flat_parameter.h"
#include "runtime/tensor/context.h"

namespace zs {

/// Compute work has written into full parameters, and they go away without the weights having been written. Every rank throws it alike,
/// from its next synchronize.
class LostWrite final : public Error {
 public:
  explicit LostWrite(const std::string& unit);
};

/// Finds such writes: before full parameters go away, a rank's own part of them is compared, byte for byte, with the shard that it was
/// gathered from; of what is not gathered, since the rank holds it whole, a hash with the one before. Of what is written back the ranks
/// compare hashes. Owned by an Executor; one host thread uses it. On return: enqueued on compute, not done.
class WriteCheck {
 public:
  /// `everybody`: over all ranks, on compute.
  WriteCheck(Context& context, Communicator& everybody) : context_(context), everybody_(everybody) {}

  /// `full`: what compute has of the unit, in gathered_dtype.
  void compare(const FlatParameter& unit, const Buffer& full);
  /// Collective. Throws, on the compute stream, for a unit that differed since the last time.
  void settle(const std::vector<FlatParameter>& units);

  /// A scope in which the unit is written to begins; its parameters are `full` to compute when it is written back; before it ends what it
  /// was given in place is compared, and last, `close`, collective, whether all ranks have written back, and the same: an
  /// Error(ranks_disagree) on the compute stream where not.
  void open(const FlatParameter& unit);
  void note_write_back(const FlatParameter& unit, const Buffer& full);
  void compare_in_place(const FlatParameter& unit);
  void close(const FlatParameter& unit);

 private:
  struct Scope {
    Memory in_place;  // i64: a hash of what the rank was given itself, as it should be
    Memory rows;      // i64, of each rank: how often it has written back; of each parameter a hash, as of the last time
    std::int64_t write_backs = 0;
  };
  Buffer row(const Scope& scope, const FlatParameter& unit) const;
  void note(const FlatParameter& unit, const Buffer& a, const Buffer& b);
  /// Enqueues `body`, which says whether the unit was written to, as of what `reads` hold.
  template <class Body>
  void note_if(const FlatParameter& unit, std::vector<Buffer> reads, Body body);
  void hash_in_place(const FlatParameter& unit);

  Context& context_;
  Communicator& everybody_;
  Memory found_;                         // i64: a hash of the name of a unit that differed, or 0
  bool has_found_ = false;               // it is written
  std::map<std::string, Scope> scopes_;  // by the unit's name
};

/// `shard` (gathered_shard_elems) := this rank's own part of a unit's full parameters, on compute.
void copy_own_shard(Context& context, const FlatParameter& unit, const Buffer& full, const Buffer& shard);

}  // namespace zs
