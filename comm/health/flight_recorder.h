#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>

#include "runtime/base/dtype.h"
#include "runtime/device/activity.h"

namespace zs {

/// Phase that a rank is in. Each but `idle` has a limit (WatchOptions).
enum class Phase : std::uint8_t { idle, init, first_step, step, checkpoint, ending };
const char* name_of(Phase phase);

/// Nanoseconds of the monotonic clock, which all processes of a host share.
std::int64_t monotonic_ns();

/// One operation of a rank. Written by the thread that runs it, read at any time, also by other processes.
struct FlightEntry {
  std::atomic<std::uint64_t> number{0};  ///< from 1, in the order of their starts; 0: none, or being written
  std::atomic<std::uint64_t> group{0};   ///< alike for all members of a communicator, and for no other one
  /// Number of the operation in its communicator, from 1: alike on all members
  std::atomic<std::uint64_t> sequence{0};
  std::atomic<std::int64_t> enqueued_ns{0}, started_ns{0}, done_ns{0};  ///< done: 0 until then
  std::atomic<std::int64_t> elems{0};
  std::atomic<std::int32_t> rank{0}, size{0}, dtype{0};  ///< rank in, and size of, the communicator; dtype
  Activity text;                                         ///< "all_gather(blocks.3)"
};

/// All that a rank tells of itself, in memory that the other ranks of the host can read. Every member is atomic, so
/// that a reader in another process sees torn texts at worst. Its rank alone writes it, but for `report_seen`. Owned by
/// a Watchdog.
struct StatusPage {
  static constexpr std::uint64_t kMagic = 0x7a73666c69676874;  // "zsflight"
  static constexpr std::size_t kEntries = 1024;

  std::atomic<std::uint64_t> magic{0};
  std::atomic<std::int32_t> rank{0}, size{0}, pid{0};
  std::atomic<Phase> phase{Phase::idle};
  std::atomic<std::int64_t> step{0};
  std::atomic<std::int64_t> heartbeat_ns{0};  ///< the watchdog's last look
  std::atomic<std::int64_t> moved_ns{0};      ///< when anything was last found done
  std::atomic<bool> has_left{false};          ///< the rank has come to the end of its part
  std::atomic<bool> has_finalized{false};     ///< MPI has ended in the rank
  std::atomic<bool> has_reported{false};      ///< the rank has told the user why the job ends
  std::atomic<bool> report_seen{false};     ///< some rank has; written by the one that has, into every page of the host
  std::atomic<std::int32_t> host_waits{0};  ///< the host thread waits for other ranks
  std::atomic<bool> host_syncs{false};      ///< the host thread waits for a stream of its device
  std::atomic<bool> streams_wait{false};    ///< each stream is idle, waits for another, or is in an operation
  std::atomic<std::uint64_t> started{0}, done{0};  ///< operations
  Activity host, streams;                          ///< activity of the host thread, and of the device's streams
  std::array<FlightEntry, kEntries> entries;       ///< operation n at n mod kEntries
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::int32_t>::is_always_lock_free);

/// Writes down the operations of one rank in its page: the last kEntries. Any thread; never blocks. Owned by a
/// Watchdog.
class FlightRecorder {
 public:
  struct Operation {
    std::uint64_t group = 0, sequence = 0;
    std::int64_t enqueued_ns = 0, elems = 0;
    int rank = 0, size = 0;
    DType dtype = DType::f32;
    std::string_view text;
  };
  explicit FlightRecorder(StatusPage& page) : page_(page) {}

  /// The operation's number, for `done`.
  std::uint64_t start(const Operation& operation) noexcept;
  void done(std::uint64_t number) noexcept;
  /// `hook` is called by each operation that has started, on its thread, and may throw. Before the first one.
  void set_start_hook(std::function<void()> hook) { start_hook_ = std::move(hook); }
  void run_start_hook() const {
    if (start_hook_) start_hook_();
  }
  /// Number of times that the host thread began or ended something.
  std::uint64_t moves() const { return moves_.load(std::memory_order_relaxed); }
  void note_move() { moves_.fetch_add(1, std::memory_order_relaxed); }
  /// Time in which at least one operation was under way, or the host thread waited for other ranks, all together: what
  /// this rank has given to the others and to waiting for them.
  std::int64_t waited_ns() const { return waited_ns_.load(std::memory_order_relaxed); }

 private:
  friend class StatusScope;

  void begin_wait(std::int64_t now) noexcept;
  void end_wait(std::int64_t now) noexcept;

  StatusPage& page_;
  std::function<void()> start_hook_;
  std::atomic<std::uint64_t> moves_{0};
  std::atomic<std::int32_t> under_way_{0};
  std::atomic<std::int64_t> since_ns_{0}, waited_ns_{0};
};

/// The page as text, see docs/reliability.md. `reason` says why it is written.
std::string flight_text(const StatusPage& page, std::string_view host, std::string_view reason);

}  // namespace zs
