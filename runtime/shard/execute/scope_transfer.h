#pragma once

#include <optional>
#include <vector>

#include "runtime/shard/execute/unsharder.h"

namespace zs {

/// Shards that a rank holds of a unit (held_elems), and can have whole: in f32, but for weights that are held once in
/// another dtype.
struct HeldShards {
  enum class Role : std::uint8_t { master, gradient, moment };
  Role role;
  Buffer held;
  bool is_on_host = false;  // the host keeps it, see HostLink

  static HeldShards masters(const FlatParameter& unit) {
    return {Role::master, unit.weights_buffer(), unit.has_masters_on_host()};
  }
  static HeldShards gradients(const FlatParameter& unit) {
    return {Role::gradient, unit.kept_grad_buffer(), static_cast<bool>(unit.host_grad)};
  }
  /// This rank's part of what is cut.
  Buffer shard(const UnitLayout& layout) const { return held.slice(0, layout.gathered_shard_elems()); }
  /// Part that every rank holds all of.
  Buffer whole(const UnitLayout& layout) const { return held.slice(layout.shard_elems(), layout.whole_elems()); }
};

/// The parameters of one unit, or their gradients or moments, whole, f32, in memory of their own. Empty on a rank that
/// sees nothing.
struct WholeUnit {
  Memory sharded;  // gathered_elems: what ranks hold parts of
  Memory whole;    // whole_elems: what every rank holds all of

  explicit operator bool() const { return sharded || whole; }
  Buffer sharded_buffer(const UnitLayout& layout) const {
    return sharded ? sharded.buffer(DType::f32, layout.gathered_elems()) : Buffer{};
  }
  Buffer whole_buffer(const UnitLayout& layout) const {
    return whole ? whole.buffer(DType::f32, layout.whole_elems()) : Buffer{};
  }
  /// View of one parameter.
  Buffer of(const UnitLayout& layout, const FlatView& view) const {
    if (view.numel == 0 || !*this) return {};
    return view.is_whole ? whole_buffer(layout).slice(view.offset - layout.gathered_elems(), view.numel)
                         : sharded_buffer(layout).slice(view.offset, view.numel);
  }
};

/// The way from f32 shards to whole units and back for an UnshardScope, beside what the schedule gathers. Owned by an
/// Executor; one host thread uses it. On return: enqueued, not done; what is made whole is there for compute. All but
/// `store` are collective.
class ScopeTransfer {
 public:
  /// `everybody`: over all ranks, on compute.
  ScopeTransfer(Context& context, Communicator& everybody, Pool& pool, Unsharder& unsharder, HostLink& link)
      : context_(context), everybody_(everybody), pool_(pool), unsharder_(unsharder), link_(link) {}

  /// Gathers the unit on every rank.
  WholeUnit gather(FlatParameter& unit, const HeldShards& shards);
  /// Gathers the unit on rank `root` alone: no other rank has more than its shard.
  WholeUnit gather_to(FlatParameter& unit, const HeldShards& shards, int root);
  /// This rank's own part of what is whole becomes its shard.
  void store(FlatParameter& unit, const HeldShards& shards, const WholeUnit& from);
  /// Scatters what is whole on rank `root` alone: it becomes every rank's shard.
  void scatter(FlatParameter& unit, const HeldShards& shards, const WholeUnit& from, int root);

  /// Copies to Device::pinned_memory(), on the offload stream; compute waits for it.
  WholeUnit to_host(const FlatParameter& unit, WholeUnit from);
  /// Copies back, on compute.
  WholeUnit to_device(const FlatParameter& unit, const WholeUnit& from);

  /// The ranks that share one set of the unit's masters, on compute.
  Communicator& masters(const FlatParameter& unit) { return unit.groups().norm ? *unit.groups().norm : everybody_; }
  /// Slice that each rank of `masters` holds.
  static std::vector<int> slices(const FlatParameter& unit);
  /// Pool that exchanged memory is taken from.
  Pool& pool() { return pool_; }

 private:
  /// Calls use(shards) with f32 shards that lie on the device; what the host keeps comes there for it, what has
  /// another dtype is cast, and goes back where it is `written`.
  template <class Use>
  void on_device(const FlatParameter& unit, const HeldShards& shards, bool written, const Use& use);
  template <class Use>
  void use_cast(const FlatParameter& unit, const HeldShards& shards, bool written, const Use& use);
  WholeUnit gather_here(FlatParameter& unit, const HeldShards& shards);
  WholeUnit gather_here_to(FlatParameter& unit, const HeldShards& shards, int root);
  void scatter_here(FlatParameter& unit, const HeldShards& shards, const WholeUnit& from, int root);
  /// The place of rank `root` among the replicas of its masters, and whether this rank has the same.
  int replica_of(const FlatParameter& unit, int root) const;
  bool is_beside(const FlatParameter& unit, int root) const;
  /// The place of rank `root`, which is in it, in `masters`.
  static int place_in_masters(const FlatParameter& unit, int root);
  Memory acquire(const FlatParameter& unit, std::int64_t elems);
  void copy(const char* name, const FlatParameter& unit, const Buffer& out, const Buffer& in);
  /// Reorders from the order of `masters` to the order of slices, or back.
  void reorder(const FlatParameter& unit, const Buffer& in, const Buffer& out, bool to_slices);
  void copy_whole(FlatParameter& unit, const HeldShards& shards, const WholeUnit& from);
  void broadcast_to_replicas(FlatParameter& unit, const HeldShards& shards, int root);

  Context& context_;
  Communicator& everybody_;
  Pool& pool_;
  Unsharder& unsharder_;
  HostLink& link_;
};

}  // namespace zs
