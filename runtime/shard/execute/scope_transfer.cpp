#include "runtime/shard/execute/scope_transfer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/shard/execute/bucket_copy.h"
#include "runtime/shard/execute/write_check.h"

namespace zs {

Memory ScopeTransfer::acquire(const FlatParameter& unit, std::int64_t elems) {
  const MemoryOwner owner(context_.device().memory(), unit.name);
  return pool_.acquire(elems * size_of(DType::f32), context_.stream(), "full_param");
}

void ScopeTransfer::copy(const char* name, const FlatParameter& unit, const Buffer& out, const Buffer& in) {
  if (in.elems == 0) return;
  context_.launch({fmt::format("{}:{}", name, unit.name), {in}, {out}},
                  [&kernels = context_.kernels(), out, in](ExecContext& exec) { kernels.copy(exec, out, in); });
}

WholeUnit ScopeTransfer::to_host(const FlatParameter& unit, WholeUnit from) {
  Stream &compute = context_.stream(), &offload = context_.device().stream(StreamRole::offload);
  Event ready, done;
  compute.record(ready);
  offload.wait(ready);
  WholeUnit to;
  for (const auto part : {&WholeUnit::sharded, &WholeUnit::whole}) {
    if (!(from.*part)) continue;
    const std::int64_t bytes = (from.*part).bytes(), elems = bytes / size_of(DType::f32);
    to.*part = context_.device().pinned_memory().acquire(bytes, offload, "full_param");
    const Buffer in = (from.*part).buffer(DType::f32, elems), out = (to.*part).buffer(DType::f32, elems);
    offload.enqueue({"move_to_host:" + unit.name, {in}, {out}},
                    [&kernels = context_.kernels(), in, out](ExecContext& exec) { kernels.copy(exec, out, in); });
    (from.*part).release(offload);
  }
  offload.record(done);
  compute.wait(done);
  return to;
}

WholeUnit ScopeTransfer::to_device(const FlatParameter& unit, const WholeUnit& from) {
  WholeUnit to;
  for (const auto part : {&WholeUnit::sharded, &WholeUnit::whole}) {
    if (!(from.*part)) continue;
    const std::int64_t elems = (from.*part).bytes() / size_of(DType::f32);
    to.*part = acquire(unit, elems);
    copy("move_to_device", unit, (to.*part).buffer(DType::f32, elems), (from.*part).buffer(DType::f32, elems));
  }
  return to;
}

template <class Use>
void ScopeTransfer::use_cast(const FlatParameter& unit, const HeldShards& shards, bool written, const Use& use) {
  const auto cast = [&](const Buffer& out, const Buffer& in) {
    if (in.elems == 0) return;
    context_.launch({"cast_frozen:" + unit.name, {in}, {out}},
                    [&kernels = context_.kernels(), out, in](ExecContext& exec) { kernels.cast(exec, out, in); });
  };
  const Memory memory = acquire(unit, shards.held.elems);
  const Buffer here = memory.buffer(DType::f32, shards.held.elems);
  cast(here, shards.held);
  use(HeldShards{shards.role, here});
  if (written) cast(shards.held, here);
}

template <class Use>
void ScopeTransfer::on_device(const FlatParameter& unit, const HeldShards& shards, bool written, const Use& use) {
  if (shards.held.dtype != DType::f32) return use_cast(unit, shards, written, use);
  if (!shards.is_on_host) return use(shards);
  HostLink::Window window = link_.load(unit.name, {shards.held});
  context_.stream().wait(window.arrived);
  use(HeldShards{shards.role, window[0]});
  written ? link_.store(std::move(window)) : HostLink::drop(std::move(window), context_.stream());
}

WholeUnit ScopeTransfer::gather(FlatParameter& unit, const HeldShards& shards) {
  WholeUnit result;
  on_device(unit, shards, false, [&](const HeldShards& here) { result = gather_here(unit, here); });
  return result;
}

WholeUnit ScopeTransfer::gather_to(FlatParameter& unit, const HeldShards& shards, int root) {
  WholeUnit result;
  on_device(unit, shards, false, [&](const HeldShards& here) { result = gather_here_to(unit, here, root); });
  return result;
}

void ScopeTransfer::scatter(FlatParameter& unit, const HeldShards& shards, const WholeUnit& from, int root) {
  on_device(unit, shards, true, [&](const HeldShards& here) { scatter_here(unit, here, from, root); });
}

WholeUnit ScopeTransfer::gather_here(FlatParameter& unit, const HeldShards& shards) {
  Stream &compute = context_.stream(), &unshard = context_.device().stream(StreamRole::unshard);
  const UnitLayout& layout = *unit.layout;
  WholeUnit result;
  if (layout.gathered_elems() > 0) {
    if (shards.role != HeldShards::Role::master) {
      Event ready;
      compute.record(ready);
      unshard.wait(ready);
    }
    result.sharded = shards.role == HeldShards::Role::master ? unsharder_.copy_masters(unit)
                                                             : unsharder_.copy_shards(unit, shards.shard(layout));
    Event gathered;
    unshard.record(gathered);
    compute.wait(gathered);
  }
  if (layout.whole_elems() > 0) {
    result.whole = acquire(unit, layout.whole_elems());
    copy("copy_whole", unit, result.whole_buffer(layout), shards.whole(*unit.layout));
  }
  return result;
}

/// Ranks along the axes of replicas differ from this one by as much as the root differs from a rank that shares its
/// masters with it.
int ScopeTransfer::replica_of(const FlatParameter& unit, int root) const {
  const ShardScheme& scheme = unit.placement->scheme;
  const std::vector<int> replicas = scheme.ranks_over(scheme.replicate), masters = scheme.ranks_over(scheme.master);
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    if (std::find(masters.begin(), masters.end(), root - replicas[i] + everybody_.rank()) != masters.end())
      return static_cast<int>(i);
  }
  ZS_CHECK(false, "rank {} shares no masters with any replica of rank {}", root, everybody_.rank());
}

bool ScopeTransfer::is_beside(const FlatParameter& unit, int root) const {
  const ShardScheme& scheme = unit.placement->scheme;
  return replica_of(unit, root) == scheme.slice(scheme.replicate).index;
}

int ScopeTransfer::place_in_masters(const FlatParameter& unit, int root) {
  if (!unit.groups().norm) return root;
  const std::vector<int> ranks = unit.placement->scheme.ranks_over(unit.placement->scheme.master);
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), root) - ranks.begin());
}

std::vector<int> ScopeTransfer::slices(const FlatParameter& unit) {
  const std::vector<int> ranks = unit.placement->scheme.ranks_over(unit.placement->scheme.master);
  std::vector<int> slices(ranks.size());
  std::iota(slices.begin(), slices.end(), 0);
  if (unit.groups().norm) return slices;
  for (std::size_t slice = 0; slice < ranks.size(); ++slice)
    slices[static_cast<std::size_t>(ranks[slice])] = static_cast<int>(slice);
  return slices;
}

void ScopeTransfer::reorder(const FlatParameter& unit, const Buffer& in, const Buffer& out, bool to_slices) {
  const std::vector<int> order = slices(unit);
  const std::int64_t elems = unit.layout->gathered_shard_elems();
  for (std::size_t place = 0; place < order.size(); ++place) {
    const Buffer by_place = (to_slices ? in : out).slice(static_cast<std::int64_t>(place) * elems, elems),
                 by_slice = (to_slices ? out : in).slice(order[place] * elems, elems);
    copy("reorder", unit, to_slices ? by_slice : by_place, to_slices ? by_place : by_slice);
  }
}

WholeUnit ScopeTransfer::gather_here_to(FlatParameter& unit, const HeldShards& shards, int root) {
  const UnitLayout& layout = *unit.layout;
  const bool is_root = everybody_.rank() == root;
  WholeUnit result;
  if (layout.gathered_elems() > 0 && is_beside(unit, root)) {
    const Buffer own = shards.shard(*unit.layout);
    if (is_root) result.sharded = acquire(unit, layout.gathered_elems());
    std::vector<std::int64_t> sends(static_cast<std::size_t>(masters(unit).size())),
        receives(sends.size(), is_root ? own.elems : 0);
    sends.at(static_cast<std::size_t>(place_in_masters(unit, root))) = own.elems;
    const Buffer all = is_root ? result.sharded_buffer(layout) : Buffer{nullptr, 0, own.dtype, own.device};
    masters(unit).all_to_all_v(context_.stream(), unit.name, {own, sends}, {all, receives});
    const std::vector<int> order = slices(unit);
    if (is_root && !std::is_sorted(order.begin(), order.end())) {
      Memory bucket = acquire(unit, layout.gathered_elems());
      reorder(unit, all, bucket.buffer(DType::f32, layout.gathered_elems()), true);
      result.sharded = std::move(bucket);
    }
    if (is_root && layout.is_interleaved()) {
      Memory full = acquire(unit, layout.gathered_elems());
      copy_out(context_.stream(), context_.kernels(), unit, result.sharded_buffer(layout),
               full.buffer(DType::f32, layout.gathered_elems()));
      result.sharded = std::move(full);
    }
  }
  if (layout.whole_elems() > 0 && is_root) {
    result.whole = acquire(unit, layout.whole_elems());
    copy("copy_whole", unit, result.whole_buffer(layout), shards.whole(*unit.layout));
  }
  return result;
}

/// Copies what is held whole. A rank also has its part of whole gradients, from which norms are made.
void ScopeTransfer::copy_whole(FlatParameter& unit, const HeldShards& shards, const WholeUnit& from) {
  const UnitLayout& layout = *unit.layout;
  if (layout.whole_elems() == 0) return;
  const Buffer held_whole = shards.whole(*unit.layout);
  if (from) copy("copy_whole", unit, held_whole, from.whole_buffer(layout));
  if (shards.role != HeldShards::Role::gradient) return;
  const std::int64_t part = layout.shard_elems() - layout.gathered_shard_elems();
  copy("copy_part", unit, shards.held.slice(layout.gathered_shard_elems(), part),
       held_whole.slice(unit.slice * part, part));
}

void ScopeTransfer::store(FlatParameter& unit, const HeldShards& shards, const WholeUnit& from) {
  on_device(unit, shards, true, [&](const HeldShards& here) {
    if (unit.layout->gathered_elems() > 0)
      copy_own_shard(context_, unit, from.sharded_buffer(*unit.layout), here.shard(*unit.layout));
    copy_whole(unit, here, from);
  });
}

void ScopeTransfer::broadcast_to_replicas(FlatParameter& unit, const HeldShards& shards, int root) {
  const ShardScheme& scheme = unit.placement->scheme;
  if (scheme.slice(scheme.replicate).count == 1) return;
  ZS_CHECK(unit.groups().finish && ShardGroups::axes_of(scheme).finish == scheme.replicate,
           "replicas without a group of their own");
  Stream &compute = context_.stream(), &finish = context_.device().stream(StreamRole::finish);
  Event ready, done;
  compute.record(ready);
  finish.wait(ready);
  unit.groups().finish->broadcast(finish, unit.name, shards.shard(*unit.layout), replica_of(unit, root));
  finish.record(done);
  compute.wait(done);
}

void ScopeTransfer::scatter_here(FlatParameter& unit, const HeldShards& shards, const WholeUnit& from, int root) {
  const UnitLayout& layout = *unit.layout;
  const bool is_root = everybody_.rank() == root;
  if (layout.gathered_elems() > 0) {
    if (is_beside(unit, root)) {
      const Buffer own = shards.shard(*unit.layout);
      Memory bucket, ordered;
      Buffer all = is_root ? from.sharded_buffer(layout) : Buffer{nullptr, 0, own.dtype, own.device};
      if (is_root && layout.is_interleaved()) {
        bucket = acquire(unit, layout.gathered_elems());
        const Buffer out = bucket.buffer(DType::f32, layout.gathered_elems());
        copy_in(context_.stream(), context_.kernels(), unit, {0, layout.ranks(), layout.gathered_shard_elems()}, all,
                out);
        all = out;
      }
      const std::vector<int> order = slices(unit);
      if (is_root && !std::is_sorted(order.begin(), order.end())) {
        ordered = acquire(unit, layout.gathered_elems());
        reorder(unit, all, ordered.buffer(DType::f32, layout.gathered_elems()), false);
        all = ordered.buffer(DType::f32, layout.gathered_elems());
      }
      std::vector<std::int64_t> receives(order.size()), sends(order.size(), is_root ? own.elems : 0);
      receives.at(static_cast<std::size_t>(place_in_masters(unit, root))) = own.elems;
      masters(unit).all_to_all_v(context_.stream(), unit.name, {all, sends}, {own, receives});
    }
    broadcast_to_replicas(unit, shards, root);
  }
  if (layout.whole_elems() > 0) {
    if (is_root) copy("copy_whole", unit, shards.whole(*unit.layout), from.whole_buffer(layout));
    everybody_.broadcast(context_.stream(), unit.name, shards.whole(*unit.layout), root);
  }
  copy_whole(unit, shards, {});
}

}  // namespace zs
