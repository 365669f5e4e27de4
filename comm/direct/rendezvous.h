#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace zs {

/// Ends every wait of every rank of one world. Set once, from any thread.
struct AbortFlag {
  std::atomic<bool> set{false};
};

/// One rank's slot at a Rendezvous, written by that rank only. May lie in memory that processes share. The counters
/// never go back, so that a slot may be used again while a slow peer still looks at how its last operation ended.
struct alignas(64) RendezvousSlot {
  std::atomic<std::uint64_t> arrived{0}, left{0};  // steps of operations, counted over the slot's life
  std::atomic<bool> failed{false};                 // for ever: such a slot is not used again
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

/// A slot, and where its counters stood when the group was made.
struct SlotOf {
  RendezvousSlot* slot;
  std::uint64_t base = 0;
};

/// Rendezvous of the ranks of a group, over and over: each posts something, sees what all have posted, uses it, and
/// nobody goes on before all have finished with it. Each rank has a view of its own, which it uses with one thread at a
/// time; the slots are owned by others. All order between ranks comes from the slots' counters: no lock is shared (see
/// runtime/device/futex.h).
///
/// When one rank gives up (deadline, abort flag, an error of its own), the operation fails for all. A rank that gives
/// up still waits until the ranks that may be reading its buffers have left, so that it can free them. Sequential
/// consistency makes this safe: either the rank that gives up sees that a peer has arrived, or that peer sees the
/// failure after arriving and touches nothing.
class Rendezvous {
 public:
  /// `has_died`, asked now and then about a rank that is waited for: whether it can never come.
  Rendezvous(std::vector<SlotOf> slots, const AbortFlag& abort_flag, std::function<bool(int)> has_died = {})
      : abort_flag_(abort_flag), slots_(std::move(slots)), has_died_(std::move(has_died)) {}
  int size() const { return static_cast<int>(slots_.size()); }
  bool has_failed() const;

 private:
  friend class RendezvousGuard;
  using Counter = std::atomic<std::uint64_t> RendezvousSlot::*;
  RendezvousSlot& slot(int rank) const { return *slots_[static_cast<std::size_t>(rank)].slot; }
  std::uint64_t count(int rank, Counter counter) const {
    return (slot(rank).*counter).load() - slots_[static_cast<std::size_t>(rank)].base;
  }
  void set(int rank, Counter counter, std::uint64_t steps) const {
    (slot(rank).*counter).store(slots_[static_cast<std::size_t>(rank)].base + steps);
  }

  const AbortFlag& abort_flag_;
  std::vector<SlotOf> slots_;
  std::function<bool(int)> has_died_;
};

/// One rank's part in one operation, on its thread's stack. Destroyed before `finish`, it fails the operation for
/// everybody.
class RendezvousGuard {
 public:
  /// `what` ("all_gather(blocks.3)") names the operation in errors and must outlive the visit.
  struct Who {
    int rank;
    std::string_view what;
    double timeout_s;
    std::span<const int> names = {};  ///< names of the ranks, in errors; none: their numbers
  };

  /// Stores `value` in this rank's `post`, and waits until all ranks have posted. Then everybody's posts may be read;
  /// buffers that they point to only after `check_alive`.
  template <class Post>
  RendezvousGuard(Rendezvous& place, const Who& who, Post& post, Post value) : RendezvousGuard(place, who) {
    check_alive();  // before the post changes: after a failure a late peer may still look at it
    post = std::move(value);
    arrive();
  }
  ~RendezvousGuard() {
    if (!finished_) give_up();
  }
  RendezvousGuard(const RendezvousGuard&) = delete;
  RendezvousGuard& operator=(const RendezvousGuard&) = delete;

  void check_alive() const;
  /// Another step of the same operation: waits until all ranks have come to it, and checks that they are alive. What
  /// was posted stays.
  void step();
  /// This rank has finished with the others' buffers; waits until they have finished with its own.
  void finish();

 private:
  using Counter = Rendezvous::Counter;

  RendezvousGuard(Rendezvous& place, const Who& who);
  void arrive();
  void wait_for_all(Counter counter) const;
  bool all_have(Counter counter) const;
  std::vector<int> missing(Counter counter) const;
  void check_for_the_dead(Counter counter) const;
  int name_of(int rank) const { return who_.names.empty() ? rank : who_.names[static_cast<std::size_t>(rank)]; }
  std::string names_of(const std::vector<int>& ranks) const;
  void give_up() noexcept;

  Rendezvous& place_;
  Who who_;
  std::uint64_t first_step_, step_;
  bool arrived_ = false, finished_ = false;
};

}  // namespace zs
