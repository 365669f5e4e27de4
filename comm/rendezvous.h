#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace zs {

/// Ends every wait of every rank of one local world. Set once, from any thread.
struct Poison {
  std::atomic<bool> set{false};
};

/// Where the ranks of a local group meet, over and over: each posts something, sees what all have posted, uses it, and nobody goes
/// on before all have finished with it. Shared by the ranks of one group; a rank visits it from one thread at a time. All order
/// between ranks comes from the slots' counters: no lock is shared (see runtime/device/futex.h).
///
/// When one rank gives up (deadline, poison, an error of its own), the meeting fails for all. A rank that gives up still waits
/// until the ranks that may be reading its buffers have left, so that it can free them. Sequential consistency makes this safe:
/// either the rank that gives up sees that a peer has arrived, or that peer sees the failure after arriving and touches nothing.
class MeetingPlace {
 public:
  MeetingPlace(int size, const Poison& poison) : poison_(poison), slots_(static_cast<std::size_t>(size)) {}
  int size() const { return static_cast<int>(slots_.size()); }

 private:
  friend class Visit;
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> arrived{0}, left{0};  // the number of the last meeting
  };
  bool has_failed() const { return failed_.load() || poison_.set.load(); }

  const Poison& poison_;
  std::atomic<bool> failed_{false};
  std::vector<Slot> slots_;
};

/// One rank's part in one meeting, on its thread's stack. Destroyed before `finish`, it fails the meeting for everybody.
class Visit {
 public:
  /// `what` ("all_gather(blocks.3)") names the meeting in errors and must outlive the visit.
  struct Who {
    int rank;
    std::string_view what;
    double timeout_s;
  };

  /// Stores `value` in this rank's `post`, and waits until all ranks have posted. Then everybody's posts may be read; buffers
  /// that they point to only after `check_alive`.
  template <class Post>
  Visit(MeetingPlace& place, const Who& who, Post& post, Post value) : Visit(place, who) {
    check_alive();  // before the post changes: after a failure a late peer may still look at it
    post = std::move(value);
    arrive();
  }
  ~Visit() {
    if (!finished_) give_up();
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  void check_alive() const;
  /// This rank has finished with the others' buffers; waits until they have finished with its own.
  void finish();

 private:
  using Counter = std::atomic<std::uint64_t> MeetingPlace::Slot::*;

  Visit(MeetingPlace& place, const Who& who);
  void arrive();
  void wait_for_all(Counter counter) const;
  std::string missing(Counter counter) const;
  void give_up() noexcept;

  MeetingPlace& place_;
  Who who_;
  std::uint64_t round_;
  bool arrived_ = false, finished_ = false;
};

}  // namespace zs
