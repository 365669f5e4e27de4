#pragma once

#include <deque>

#include "runtime/shard/execute/flat_parameter.h"
#include "runtime/shard/offload/host_link.h"
#include "runtime/tensor/context.h"

namespace zs {

/// The way of parameters from shards to whole ones and back: gathers on the unshard stream, binding of parameters to
/// views. Owned by an Executor; one host thread uses it. On return from every function: enqueued, not done.
class Unsharder {
 public:
  Unsharder(Context& context, Pool& pool, HostLink& link) : context_(context), pool_(pool), link_(link) {}

  /// Gathers from the master shards.
  void gather(FlatParameter& unit);
  /// Gathers by way of the small group's shards, which are the master slices of the same place in all groups, one after
  /// the other.
  void two_level_gather(FlatParameter& unit);
  void gather_secondary(FlatParameter& unit);
  void wait_gathered(FlatParameter& unit);
  void keep_secondary_shard(FlatParameter& unit);
  void drop_secondary_shard(FlatParameter& unit);
  void free_full(FlatParameter& unit);
  void defer_free(FlatParameter& unit);
  void free_deferred(FlatParameter& unit);

  /// Full parameters of an unsharded unit, as compute reads them.
  static Buffer full_buffer(const FlatParameter& unit);
  /// The master shards (and their compute copies) were written by compute work enqueued so far; the next gathers wait
  /// for it.
  void masters_updated();
  /// The unit's master weights but for whole parameters (gathered_elems), once the unshard stream has come here: in
  /// `memory`, of that stream, or where they lie anyway. f32, but where there are none the dtype of what is held.
  Buffer gather_masters(FlatParameter& unit, Memory& memory);
  /// Gathers the master weights as above, in f32, into memory that has no other user.
  Memory copy_masters(FlatParameter& unit);
  /// Gathers other shards (gathered_shard_elems), which the unshard stream may read, in the same way.
  Memory copy_shards(FlatParameter& unit, const Buffer& shard);
  static constexpr const char* kCastLabel = "cast_shard";  ///< label of a frozen shard in the dtype of its gather

 private:
  /// Gathers to `full` what `gather` puts into a bucket: the same, or one in `bucket` that is copied from.
  template <class Gather>
  void gather_to(FlatParameter& unit, const Buffer& full, Memory& bucket, const Gather& gather);
  static std::int64_t kept_elems(const FlatParameter& unit) {
    return unit.layout->gathered_elems() / unit.placement->kept.count;
  }
  Memory acquire(std::int64_t elems, DType dtype, Stream& stream, const char* label);
  void wait_masters(const FlatParameter& unit);
  /// This rank's shard, which the unshard stream may read: of a staged unit a copy, and whole parameters beside it.
  Buffer shard_of(FlatParameter& unit);
  /// A copy of what the host keeps, or of frozen weights in the dtype of the gather, which is there after the event.
  Event bring(const FlatParameter& unit, Memory& memory, const Buffer& held, const char* label);
  void cast(const FlatParameter& unit, const Buffer& out, const Buffer& in);
  void bring_whole(FlatParameter& unit);
  /// All that is needed of a staged unit of which no other rank has a part.
  void bring_all(FlatParameter& unit);
  /// All that is needed of a unit whose weights are encoded: they are gathered as they are held, and decoded.
  /// `through`: memory of the small group's shards, of a gather in two steps; where it is there it is gathered from.
  void gather_encoded(FlatParameter& unit, Memory& through);
  /// Encoded shards of all ranks that share the unit's masters: in `memory`, or where they lie anyway.
  Buffer encoded_shards(FlatParameter& unit, Memory& memory, Memory& through);
  void decode(const FlatParameter& unit, const Buffer& out, const Buffer& encoded);
  /// The weights of an encoded unit in f32, in `memory`, beside what the schedule gathers.
  Buffer decode_all(FlatParameter& unit, Memory& memory);
  /// All-gathers shards in the unit's format.
  void gather_shards(const FlatParameter& unit, const Buffer& shard, const Buffer& out);
  Buffer begin(FlatParameter& unit);
  void publish(FlatParameter& unit);
  bool open_view(FlatParameter& unit);
  static void unbind(FlatParameter& unit);
  void wait_unsharded(const FlatParameter& unit);
  Stream& unshard() { return context_.device().stream(StreamRole::unshard); }

  Context& context_;
  Pool& pool_;
  HostLink& link_;
  Event masters_ready_;
  struct Aside {
    const FlatParameter* unit;
    Memory full, whole;
    Event last_use;  // by compute
  };
  std::deque<Aside> deferred_;  // oldest first
};

}  // namespace zs
