#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/comm_dtype.h"
#include "comm/traffic.h"
#include "runtime/base/buffer.h"
#include "runtime/base/random.h"
#include "runtime/device/allocator.h"
#include "runtime/device/stream.h"

namespace zs {

class FlightRecorder;
class PartTable;
class BufferRaceCheck;

/// A buffer in parts, one for each rank, one after the other: counts[r] elements for rank r, or of it. Any count, zero
/// included.
struct RankParts {
  Buffer data;
  std::span<const std::int64_t> counts;  ///< not needed after the call
};

/// Name that distinguishes a communicator from all others of its world, alike on all its members: made from its
/// parent's and the split.
struct GroupName {
  std::uint64_t name = 0, splits = 0;
  GroupName child(int color) { return {mix64(name ^ mix64(++splits << 32 ^ static_cast<std::uint32_t>(color))), 0}; }
};

/// Operator by which a reduction combines the elements of all ranks.
enum class ReduceOp : std::uint8_t { sum, max, min };

/// Mode in which reduce_scatter treats its output: `overwrite` starts the sum from nothing, `accumulate` from what the
/// output holds.
enum class ReduceInto : std::uint8_t { overwrite, accumulate };

/// Description of one operation of one rank. It travels with the data of every operation, so that ranks which disagree
/// are stopped before data mixes. Trivially copyable: transports send its bytes.
struct OpTag {
  /// hash of operation, unit, dtype, count, and variant: reduction operator, root or reduce mode
  std::uint64_t hash = 0;
  std::int64_t elems = 0;        ///< number of elements of the buffer named first in the operation
  DType dtype = DType::f32;      ///< dtype of that buffer
  std::array<char, 63> text_{};  ///< "all_gather(blocks.3)", zero-terminated; a long unit keeps its end

  std::string_view text() const { return text_.data(); }
};
static_assert(sizeof(OpTag) == 80);

/// Error(ranks_disagree) that names both ranks' operations, lower rank first.
Error ranks_disagree(int rank_a, const OpTag& a, int rank_b, const OpTag& b);

/// Thrown by a wait that ended because another rank failed or aborted the group: a consequence, not a cause.
class GroupEnded final : public Error {
 public:
  using Error::Error;
};

/// Operations that are enqueued and whose work is still there.
class OperationsUnderWay {
 public:
  /// One of them, for as long as its work is there.
  class Use {
   public:
    explicit Use(OperationsUnderWay& of) : of_(&of) { of_->count_.fetch_add(1, std::memory_order_relaxed); }
    Use(const Use& other) : Use(*other.of_) {}
    Use& operator=(const Use&) = delete;
    ~Use() { of_->count_.fetch_sub(1, std::memory_order_release); }

   private:
    OperationsUnderWay* of_;
  };

  /// Waits until there are none; while an exception is under way, which the ranks that are waited for may know nothing
  /// of, for a second.
  void await() const noexcept;

 private:
  std::atomic<int> count_{0};
};

/// A group of ranks that exchange buffers on streams. One communicator per (group, stream): all operations of one
/// communicator are enqueued on one stream, in the same order on every rank. On return: enqueued, not done. Every
/// operation names the unit (or purpose) it works for; transports carry an OpTag with the data, so ranks that disagree
/// throw Error(ranks_disagree) before data mixes. A wait for a peer longer than the world's timeout throws
/// Error(peer_lost). After either the communicator is of no further use. Sums are reduced in rank order, so they are
/// the same for every transport but nccl, whose exceptions are said at make_nccl_world (comm/gpu/gpu_world.h). Any
/// count is legal, zero included. Every operation begins when all ranks have come to it.
///
/// Owned by whoever split it off; must die before its World, and waits, when it does, for the operations that are on
/// their way. One host thread uses it.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* transport() const = 0;
  /// True if operations move nothing, and results are whatever memory holds.
  virtual bool is_idle() const { return false; }

  /// Memory the transport can use without a copy; one for the whole World. Buffers from elsewhere are legal, may be
  /// slower.
  virtual Allocator& arena() = 0;
  /// True if the arena is any better than ordinary memory of the device.
  virtual bool prefers_arena() const { return false; }

  /// full (size * n) := concatenation of every rank's shard (n), in rank order. In place when `shard` is this rank's
  /// slice of `full`. Same dtype. Any other overlap is an error.
  void all_gather(Stream& stream, std::string_view unit, Buffer shard, Buffer full);

  /// shard (n) := [shard +] sum over ranks, in rank order 0..size-1, of their `full` (size * n) slices that belong to
  /// this rank. `full` of any dtype (sums of integers wrap), but u8 and u16 over nccl. `shard` of the same dtype
  /// (bf16 is carried in f32 and rounded once at the end, also with accumulate), or f32 where `full` is bf16 (one f32
  /// addition a rank and element). In place when `shard` is this rank's slice of `full` (same dtype, overwrite only).
  /// CommDType::int8: slices travel packed, and are summed in f32, in rank order over all ranks; transport `hier` sums
  /// inside each host first, exactly, and packs what crosses.
  void reduce_scatter(Stream& stream, std::string_view unit, Buffer full, Buffer shard, ReduceInto into,
                      CommDType comm_dtype = CommDType::exact);

  /// data := reduction over ranks in rank order, of dtypes as above; bf16 is carried in f32. A NaN of any rank makes
  /// the maximum and the minimum NaN.
  void all_reduce(Stream& stream, std::string_view unit, Buffer data, ReduceOp op);

  /// data := rank `root`'s data.
  void broadcast(Stream& stream, std::string_view unit, Buffer data, int root);

  /// out slice j (n) on this rank := in slice (this rank) of rank j. Same dtype and count (size * n). In place when
  /// `in` is `out`, at the price of scratch of as much, and of a copy into it.
  void all_to_all(Stream& stream, std::string_view unit, Buffer in, Buffer out);

  /// out part j := in part (this rank) of rank j: what rank i sends to j is what j expects of i, else
  /// Error(ranks_disagree) on every rank, before data moves. For that the ranks tell each other all counts first, in a
  /// round of its own: where all parts are equal, all_to_all is faster. Same dtype. In place when both begin at one
  /// address, as above.
  void all_to_all_v(Stream& stream, std::string_view unit, RankParts in, RankParts out);

  /// The stream goes on when every rank's stream has come here.
  void barrier(Stream& stream, std::string_view unit);

  /// Lets `recorder`, which outlives this, write down the operations; null: nothing does. Delay above 0: operations run
  /// on private copies and end up to so many milliseconds later (comm/buffer_race_check.h). `group` is the name. Call
  /// before the first operation.
  void record_by(FlightRecorder* recorder, double race_check_delay_ms, GroupName group) {
    recorder_ = recorder;
    race_check_delay_ms_ = race_check_delay_ms;
    group_name_ = group;
  }

  /// Collective, blocks the host: `bytes` of memory that every rank addresses, not initialised; null on every rank
  /// where the transport has none. Lives until the last rank has let go of it, or its process has ended.
  /// Error(out_of_memory) on every rank, Error(ranks_disagree) where they do not ask for the same.
  virtual std::shared_ptr<void> shared_window(std::int64_t /*bytes*/) { return nullptr; }

  /// A barrier after which this rank reads in `window` (size * n, of a shared window, the same on every rank) what the
  /// others have put in their slices, and they what this rank has put in its own, `shard` (n). Nothing moves, but where
  /// `shard` is elsewhere: it is copied to the slice first. When a rank may write its slice again the caller has to
  /// know.
  void publish(Stream& stream, std::string_view unit, Buffer shard, Buffer window);

  /// True if operations run on private copies, to find who touches buffers that are in use (comm/buffer_race_check.h).
  bool is_race_checked() const;

  /// Traffic that this rank has sent so far, in all operations enqueued here.
  const CommTraffic& traffic() const { return traffic_; }
  /// Bytes that this rank has put into messages, as the transport moves them: nothing where ranks reach each other's
  /// memory. Operations that are enqueued and have not begun are not counted. Any thread.
  virtual std::int64_t message_bytes() const { return 0; }

  /// Collective, blocks the host: ranks of equal `color`, 0 or more, form a communicator, ordered by (key, rank).
  /// `split(0, rank())` is a duplicate, for another stream.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

 protected:
  FlightRecorder* recorder() const { return recorder_; }
  /// Operations that are on their way. The destructor of each class that has do_barrier awaits them first.
  OperationsUnderWay operations_;
  /// A part that was split off by that color is recorded as this one is.
  std::unique_ptr<Communicator> recorded_like_this(std::unique_ptr<Communicator> part, int color) {
    part->record_by(recorder_, race_check_delay_ms_, group_name_.child(color));
    return part;
  }

  /// Error(ranks_disagree): the two ranks ask for shared windows of different sizes.
  static Error windows_disagree(int rank_a, std::int64_t bytes_a, int rank_b, std::int64_t bytes_b);
  /// Working memory that the two reductions ask of their stream; depends on the arguments only.
  virtual std::int64_t reduce_scatter_scratch_bytes(const Buffer& /*full*/, const Buffer& /*shard*/, ReduceInto) const {
    return 0;
  }
  virtual std::int64_t all_reduce_scratch_bytes(const Buffer& /*data*/) const { return 0; }
  /// Scratch of do_packed_sum, in bytes.
  virtual std::int64_t packed_sum_scratch_bytes(const Buffer& full) const;
  /// Pinned memory of the host, in bytes, that any operation which moves data asks of its stream. `out`: empty
  /// where it is `in`.
  virtual std::int64_t pinned_bytes(const Buffer& /*in*/, const Buffer& /*out*/) const { return 0; }

  /// Execution context of the stream, within the calls below.
  ExecContext& exec() const { return *exec_; }
  // Called on the stream's thread with checked arguments. Size 1 and counts of zero come here too. `scratch` has the
  // bytes asked for above.
  virtual void do_all_gather(const OpTag& tag, Buffer shard, Buffer full) = 0;
  virtual void do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, ReduceInto into, void* scratch) = 0;
  virtual void do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void* scratch) = 0;
  virtual void do_broadcast(const OpTag& tag, Buffer data, int root) = 0;
  virtual void do_all_to_all(const OpTag& tag, Buffer in, Buffer out) = 0;
  virtual void do_all_to_all_v(const OpTag& tag, const PartTable& parts, Buffer in, Buffer out) = 0;
  virtual void do_barrier(const OpTag& tag) = 0;
  /// True if the buffers are this host's memory. Only there the race-check mode (comm/buffer_race_check.h) works.
  virtual bool is_on_host() const { return true; }
  /// True if a reduce_scatter of that dtype can be ReduceInto::accumulate.
  virtual bool adds_onto(DType /*dtype*/) const { return true; }
  /// True if that dtype can be reduced at all.
  virtual bool adds(DType /*dtype*/) const { return true; }
  /// True if the next two functions are there, for buffers where they lie: else nothing travels as int8.
  virtual bool can_pack() const { return true; }
  /// Pack and reduce, as KernelTable's pack_int8 and reduce_int8: elements (slices, n), packed u8, one part after the
  /// other.
  virtual void pack(Buffer packed, Buffer elements, int slices);
  virtual void reduce_packed(Buffer out, Buffer packed, int parts, bool accumulate);
  /// The ranks tell each other `own`: what each sends to every other, then what it expects. `scratch`: of so many bytes
  /// for each rank.
  virtual PartTable agree_on_parts(const OpTag& tag, std::span<const std::int64_t> own, void* scratch);
  /// do_reduce_scatter with CommDType::int8.
  virtual void do_packed_sum(const OpTag& tag, Buffer full, Buffer shard, ReduceInto into, void* scratch);

 private:
  /// Record of an operation that it takes along to its stream.
  struct Ticket {
    OperationsUnderWay::Use use;
    OpTag tag;
    std::uint64_t sequence = 0;
    std::int64_t enqueued_ns = 0;
  };
  Ticket ticket(const OpTag& tag);
  /// Declaration that an operation is enqueued with: `info`, with the pinned memory of the transport.
  OpInfo moving(OpInfo info, const Buffer& in, const Buffer& out) const {
    info.pinned_bytes = pinned_bytes(in, out);
    return info;
  }
  /// Performs `run`, with its record, on the stream's thread.
  template <class Run>
  void perform(ExecContext& exec, const Ticket& ticket, const Run& run);
  BufferRaceCheck make_race_check(const Ticket& ticket) const;
  /// Transfer that an operation makes, from one buffer to the other.
  using Exchange = std::function<void(Buffer in, Buffer out)>;
  void checked_all_gather(const Ticket& ticket, Buffer shard, Buffer full, const Exchange& gather);
  void checked_reduce_scatter(const Ticket& ticket, Buffer full, Buffer shard, const Exchange& reduce);
  void checked_all_reduce(const Ticket& ticket, Buffer data, ReduceOp op, void* scratch);
  void checked_broadcast(const Ticket& ticket, Buffer data, int root);
  void checked_exchange(const Ticket& ticket, Buffer in, Buffer out, const Exchange& exchange);
  void checked_publish(const Ticket& ticket, Buffer shard, Buffer slice);
  void enqueue_packed_sum(Stream& stream, OpInfo info, const Ticket& ticket, Buffer full, Buffer shard,
                          ReduceInto into);
  std::string where(std::string_view op, std::string_view unit) const;
  void check_sum(std::string_view op, std::string_view unit, DType dtype) const;
  /// A copy of `in` in scratch of as many bytes.
  Buffer copy_to_scratch(const Buffer& in, void* scratch) const;
  void check_comm_dtype(CommDType comm_dtype, std::string_view op, std::string_view unit, DType dtype) const;

  CommTraffic traffic_;
  ExecContext* exec_ = nullptr;  // on the stream's thread
  FlightRecorder* recorder_ = nullptr;
  double race_check_delay_ms_ = 0;
  GroupName group_name_;
  std::uint64_t sequence_ = 0;
};

}  // namespace zs
