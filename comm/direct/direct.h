#pragma once

#include <span>
#include <vector>

#include "comm/direct/rendezvous.h"

namespace zs {

/// Part of one rank in an operation, as it tells the others. Trivially copyable; may lie in memory that processes
/// share.
struct OpPost {
  OpTag tag;
  std::int64_t data = 0;  ///< offset of what the others read (all_reduce: and write) in this rank's memory; or kPrivate
  std::int64_t staging = 0;  ///< offset of its staging memory, where `data` is private
};

/// The memory of one rank that the others can read and write, as this process sees it.
struct PeerMemory {
  static constexpr std::int64_t kPrivate = -1;

  std::uintptr_t base = 0;
  std::int64_t bytes = INT64_MAX;

  std::byte* at(std::int64_t offset) const {
    return reinterpret_cast<std::byte*>(base + static_cast<std::uintptr_t>(offset));
  }
  /// kPrivate when the buffer is elsewhere.
  std::int64_t offset_of(const Buffer& buffer) const;
};

/// One rank's view of a group whose ranks reach each other's memory. All by rank.
struct DirectGroup {
  Rendezvous place;
  std::vector<OpPost*> posts;  ///< each written by its rank only
  std::vector<PeerMemory> memory;
};

/// Operations between ranks that read each other's buffers where they are: each rank fetches (and reduces) its own part
/// of everybody's data. Buffers that the others cannot reach go through staging memory, chunk by chunk, which everybody
/// steps through together. Thread and stream rules: Communicator's.
class DirectCommunicator : public Communicator {
 public:
  /// Size of each rank's staging memory.
  static constexpr std::int64_t kStagingBytes = std::int64_t{1} << 20;

  int rank() const override { return rank_; }
  int size() const override { return group_.place.size(); }
  /// Names the ranks in errors, by rank, where these are part of a larger group.
  void call_ranks(std::vector<int> names) { names_ = std::move(names); }

 protected:
  DirectCommunicator(int rank, double timeout_s, DirectGroup group);
  /// This rank's memory of kStagingBytes, within its PeerMemory. Called by the stream's thread.
  virtual std::byte* staging() = 0;
  RendezvousGuard::Who who(std::string_view what) const { return {rank_, what, timeout_s_, names_}; }
  const DirectGroup& group() const { return group_; }

 private:
  friend class DirectOperation;

  void do_all_gather(const OpTag& tag, Buffer shard, Buffer full) override;
  void do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, ReduceInto how, void* scratch) override;
  void do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void* scratch) override;
  void do_broadcast(const OpTag& tag, Buffer data, int root) override;
  void do_all_to_all(const OpTag& tag, Buffer in, Buffer out) override;
  void do_all_to_all_v(const OpTag& tag, const PartTable& parts, Buffer in, Buffer out) override;
  void do_barrier(const OpTag& tag) override;

  int rank_;
  double timeout_s_;
  DirectGroup group_;
  std::vector<int> names_;
  std::vector<const std::byte*> parts_;
};

}  // namespace zs
