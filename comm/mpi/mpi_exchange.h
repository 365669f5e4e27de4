#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backoff.h"
#include "comm/message_sums.h"
#include "comm/ordered_reduce.h"

namespace zs {

/// The one place where MPI's return codes are read: throws Error(peer_lost) with MPI's own text.
void check_mpi(int code, const char* call);

/// Everything that one operation moves between this rank and its peers, by non-blocking point-to-point messages,
/// polled, with a deadline that every completed message renews; less often where the operation before has found the
/// links slow. Owns one MPI communicator. Used by one thread at a time.
///
/// The first message of each pair is the OpTag, with the payload after it where that is small. A receiver compares the
/// tag before it lets any payload into a buffer. Payloads of up to kEagerBytes are already on their way then. Larger
/// ones, in chunks, at most kMessageSlots of them at a time, wait for MPI to hear that the receiver is ready. Between
/// hosts that answer goes by the socket of the data that the receiver itself sends, and must not come to wait behind
/// it. So a rank offers such data when it has seen the peer's tag, and only then accepts the peer's: its answer to the
/// peer is always under way before the peer's to it comes, and with that its data.
class MpiExchange {
 public:
  static constexpr std::int64_t kEagerBytes = 64'000;  // with MPI's header below the eager limit of tcp
  static constexpr std::int64_t kPlacedChunkBytes = std::int64_t{256} << 20;  // far below what an int can count

  /// Data that goes to and comes from one peer. Ignored for this rank itself.
  struct Peer {
    const std::byte* send = nullptr;
    std::int64_t send_bytes = 0;
    std::byte* receive = nullptr;  ///< unused when the exchange reduces
    std::int64_t receive_bytes = 0;
  };
  /// Received payloads go through scratch and are reduced with this rank's own part, in rank order.
  struct OrderedReduction {
    const std::byte* own;
    DType part_dtype;
    std::byte* out;
    DType out_dtype;
    bool accumulate;
    std::int64_t elems;
    ReduceOp op;
    void* scratch;  ///< as message_sums.h has it
  };

  /// Takes the communicator over.
  MpiExchange(MPI_Comm comm, double timeout_s);
  ~MpiExchange();
  MpiExchange(const MpiExchange&) = delete;
  MpiExchange& operator=(const MpiExchange&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// `has_died` is asked now and then about a rank that is waited for: whether it can never come.
  void watch(std::function<bool(int)> has_died) { has_died_ = std::move(has_died); }
  /// Collective, blocks the host: the communicator of those that name the same color, ordered by (key, rank).
  MPI_Comm split_off(int color, int key) const;
  /// This communicator's ranks of those of `part`, which was split off it.
  std::vector<int> ranks_of(MPI_Comm part) const;
  /// Payload handed to MPI so far. Any thread.
  std::int64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }

  /// One entry a rank, cleared; filled by the caller before each run.
  std::span<Peer> prepare();
  void run(const OpTag& tag) { run(tag, nullptr); }
  void run_reduction(const OpTag& tag, const OrderedReduction& reduction) { run(tag, &reduction); }

 private:
  /// Requests of a peer: the first message that comes, kMessageSlots chunks that come, and as many of what goes.
  enum Lane { first_in, in, first_out = in + kMessageSlots, out };
  static constexpr int kLanes = out + kMessageSlots;

  struct Progress {
    std::int64_t sent = 0, received = 0;  // chunks whose message has been posted
  };

  void run(const OpTag& tag, const OrderedReduction* reduction);
  void start();
  void poll_to_the_end();
  std::int64_t busiest_way_bytes() const;
  void note_speed();
  void completed(int index);
  void first_message_came(int peer);
  void pump_sends(int peer);
  void pump_receives(int peer);
  void reduce_what_is_complete();
  bool chunk_is_complete(int peer, std::int64_t chunk);
  std::byte* destination(int peer, std::int64_t chunk);
  std::vector<int> waited_for() const;
  /// Any of the lanes from `begin` up to `end`.
  bool is_pending(int begin, int end, int peer) const;
  void check_for_the_dead() const;
  void abandon() noexcept;

  MPI_Request& request(int lane, int peer) { return requests_[static_cast<std::size_t>(lane * size_ + peer)]; }
  MPI_Request& chunk_request(Lane direction, std::int64_t chunk, int peer) {
    return request(direction + static_cast<int>(chunk % kMessageSlots), peer);
  }
  std::byte* first_message(std::vector<std::byte>& messages, int peer) {
    return messages.data() + peer * kFirstMessageBytes;
  }
  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  Progress& progress(int peer) { return progress_[static_cast<std::size_t>(peer)]; }

  MPI_Comm comm_;
  double timeout_s_;
  int rank_ = 0, size_ = 0;
  std::function<bool(int)> has_died_;
  bool has_failed_ = false;
  std::atomic<std::int64_t> sent_bytes_{0};
  std::chrono::microseconds longest_sleep_{Backoff::kLongestSleep};  // by the speed of the last large operation
  std::vector<std::byte> incoming_, outgoing_;                       // first messages, by peer

  // state of the operation that runs
  OpTag tag_;
  const OrderedReduction* reduction_ = nullptr;
  std::int64_t chunk_bytes_ = 0, reduced_ = 0;  // reduced chunks
  int missing_ = 0;                             // peers whose first message has not come
  std::chrono::steady_clock::time_point all_came_;
  std::vector<Peer> peers_;
  std::vector<Progress> progress_;
  std::vector<MPI_Request> requests_;  // [lane][peer]
  std::vector<int> indices_;
  std::vector<const std::byte*> parts_;
};

}  // namespace zs
