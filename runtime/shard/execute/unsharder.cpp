#include "runtime/shard/execute/unsharder.h"

#include <algorithm>
#include <utility>

#include "runtime/shard/execute/bucket_copy.h"

namespace zs {

Memory Unsharder::acquire(std::int64_t elems, DType dtype, Stream& stream, const char* label) {
  return pool_.acquire(elems * size_of(dtype), stream, label);
}

Buffer Unsharder::full_buffer(const FlatParameter& unit) {
  if (unit.is_view()) return unit.shared;
  return unit.is_never_gathered() || unit.layout->gathered_elems() == 0
             ? unit.param_buffer()
             : unit.full.buffer(unit.gathered_dtype, unit.layout->gathered_elems());
}

Buffer Unsharder::begin(FlatParameter& unit) {
  unit.full = acquire(unit.layout->gathered_elems(), unit.gathered_dtype, unshard(), "full_param");
  return full_buffer(unit);
}

template <class Gather>
void Unsharder::gather_to(FlatParameter& unit, const Buffer& full, Memory& bucket, const Gather& gather) {
  if (!unit.layout->is_interleaved()) return gather(full);
  bucket = acquire(full.elems, full.dtype, unshard(), "param_bucket");
  const Buffer gathered = bucket.buffer(full.dtype, full.elems);
  gather(gathered);
  copy_out(unshard(), context_.kernels(), unit, gathered, full);
}

Event Unsharder::bring(const FlatParameter& unit, Memory& memory, const Buffer& held, const char* label) {
  if (unit.is_cast_to_gather()) {
    wait_masters(unit);
    memory = acquire(held.elems, unit.gathered_dtype, unshard(), label);
    cast(unit, memory.buffer(unit.gathered_dtype, held.elems), held);
    Event done;
    unshard().record(done);
    return done;
  }
  HostLink::Window window = link_.load(unit.name, {held}, &pool_, label);
  memory = std::move(window.parts.front().memory);
  return window.arrived;
}

void Unsharder::cast(const FlatParameter& unit, const Buffer& out, const Buffer& in) {
  if (in.elems == 0) return;
  unshard().enqueue({"cast_frozen:" + unit.name, {in}, {out}},
                    [&kernels = context_.kernels(), out, in](ExecContext& exec) { kernels.cast(exec, out, in); });
}

void Unsharder::bring_whole(FlatParameter& unit) {
  const UnitLayout& layout = *unit.layout;
  if (!unit.is_staged() || layout.whole_elems() == 0) return;
  unit.arrived =
      bring(unit, unit.whole, unit.weights_buffer().slice(layout.shard_elems(), layout.whole_elems()), "full_param");
}

void Unsharder::bring_all(FlatParameter& unit) {
  bring_whole(unit);
  if (unit.layout->gathered_elems() > 0) unit.gathered = bring(unit, unit.full, unit.param_buffer(), "full_param");
}

Buffer Unsharder::shard_of(FlatParameter& unit) {
  if (!unit.is_staged()) {
    wait_masters(unit);
    return unit.param_buffer();
  }
  const bool is_cast = unit.is_cast_to_gather();
  const Event arrived = bring(unit, unit.staged, unit.param_buffer(), is_cast ? kCastLabel : HostLink::kLabel);
  if (!is_cast) unshard().wait(arrived);  // else it is on this stream
  bring_whole(unit);
  return unit.staged.buffer(DType::f32, unit.layout->gathered_shard_elems());
}

void Unsharder::gather_shards(const FlatParameter& unit, const Buffer& shard, const Buffer& out) {
  Communicator& group = *unit.groups().gather;
  const GatherFormat* const format = unit.format();
  if (format == nullptr || group.size() == 1) return group.all_gather(unshard(), unit.name, shard, out);
  const std::int64_t bytes = format->encoded_bytes(shard.elems, shard.dtype);
  ZS_CHECK(bytes > 0, "format {} makes {} bytes of {} elements", format->name(), bytes, shard.elems);
  const Memory memory = acquire(bytes * group.size(), DType::u8, unshard(), "encoded_shards");
  const Buffer all = memory.buffer(DType::u8, bytes * group.size()), own = all.slice(group.rank() * bytes, bytes);
  // An idle group moves nothing, so there is nothing to decode.
  unshard().enqueue({"encode:" + unit.name, {shard}, {own}},
                    [&kernels = context_.kernels(), &group, format, own, shard](ExecContext& exec) {
                      if (!group.is_idle()) format->encode({exec, kernels}, own, shard);
                    });
  group.all_gather(unshard(), unit.name, own, all);
  unshard().enqueue({"decode:" + unit.name, {all}, {out}},
                    [&kernels = context_.kernels(), &group, format, out, all](ExecContext& exec) {
                      if (!group.is_idle()) format->decode({exec, kernels}, out, all, group.size());
                    });
}

/// Only the first gather after an update has something to do: to fetch what this rank shares of the masters, where
/// those are elsewhere too, and to wait until every rank has written its shard.
void Unsharder::publish(FlatParameter& unit) {
  if (unit.is_published) return;
  unit.is_published = true;
  wait_masters(unit);
  const Buffer own = unit.shared_shard();
  if (unit.shared_kept) gather_shards(unit, unit.param_buffer(), own);
  (unit.shared_kept ? unit.groups().gather_small : unit.groups().gather)
      ->publish(unshard(), unit.name, own, unit.shared);
  unshard().record(unit.gathered);
}

/// Opens the view, if the unit is one; then nothing has to be gathered or kept.
bool Unsharder::open_view(FlatParameter& unit) {
  unit.is_open = unit.is_view();
  if (unit.is_open) publish(unit);
  return unit.is_open;
}

void Unsharder::gather(FlatParameter& unit) {
  unit.is_waited_for = false;
  if (unit.is_never_gathered() || open_view(unit)) return;
  const MemoryOwner owner(context_.device().memory(), unit.name);
  if (unit.is_encoded()) {
    Memory through;
    return gather_encoded(unit, through);
  }
  if (unit.is_local()) return bring_all(unit);
  const Buffer shard = shard_of(unit);
  gather_to(unit, begin(unit), unit.bucket, [&](const Buffer& bucket) { gather_shards(unit, shard, bucket); });
  unshard().record(unit.gathered);
}

void Unsharder::wait_masters(const FlatParameter& unit) {
  unshard().wait(masters_ready_);
  unshard().wait(unit.updated);
}

void Unsharder::two_level_gather(FlatParameter& unit) {
  unit.is_waited_for = false;
  if (unit.is_never_gathered() || open_view(unit)) return;
  const MemoryOwner owner(context_.device().memory(), unit.name);
  if (unit.is_encoded()) return gather_encoded(unit, unit.kept);
  if (unit.is_local()) return bring_all(unit);
  const Buffer shard = shard_of(unit);
  unit.kept = acquire(kept_elems(unit), unit.gathered_dtype, unshard(), "kept_shard");
  const Buffer kept = unit.kept.buffer(unit.gathered_dtype, kept_elems(unit));
  gather_to(unit, begin(unit), unit.bucket, [&](const Buffer& bucket) {
    gather_shards(unit, shard, kept);
    unit.groups().gather_small->all_gather(unshard(), unit.name, kept, bucket);
  });
  unshard().record(unit.gathered);
}

void Unsharder::gather_secondary(FlatParameter& unit) {
  unit.is_waited_for = false;
  if (unit.is_never_gathered() || open_view(unit)) return;
  const MemoryOwner owner(context_.device().memory(), unit.name);
  if (unit.is_encoded()) return gather_encoded(unit, unit.kept);
  if (unit.is_local()) return bring_all(unit);
  bring_whole(unit);
  unshard().wait(unit.kept_ready);
  gather_to(unit, begin(unit), unit.bucket, [&](const Buffer& bucket) {
    unit.groups().gather_small->all_gather(unshard(), unit.name,
                                           unit.kept.buffer(unit.gathered_dtype, kept_elems(unit)), bucket);
  });
  unshard().record(unit.gathered);
}

void Unsharder::keep_secondary_shard(FlatParameter& unit) {
  if (unit.is_local() || unit.is_view()) return;
  const MemoryOwner owner(context_.device().memory(), unit.name);
  unit.kept = acquire(kept_elems(unit), unit.gathered_dtype, context_.stream(), "kept_shard");
  const Buffer out = unit.kept.buffer(unit.gathered_dtype, kept_elems(unit)), full = full_buffer(unit);
  const ShardScheme::Slice kept = unit.placement->kept;
  if (unit.layout->is_interleaved()) {
    const int shards = unit.layout->ranks() / kept.count;
    copy_in(context_.stream(), context_.kernels(), unit,
            {kept.index * shards, shards, unit.layout->gathered_shard_elems()}, full, out);
  } else {
    const Buffer in = full.slice(kept.index * out.elems, out.elems);
    context_.launch({"keep_secondary_shard:" + unit.name, {in}, {out}},
                    [&kernels = context_.kernels(), out, in](ExecContext& exec) { kernels.copy(exec, out, in); });
  }
  context_.stream().record(unit.kept_ready);
}

void Unsharder::drop_secondary_shard(FlatParameter& unit) {
  if (!unit.kept) return;
  unshard().wait(unit.kept_ready);  // in case that no gather has waited
  unit.kept.release(unshard());
}

void Unsharder::wait_unsharded(const FlatParameter& unit) {
  context_.stream().wait(unit.gathered);
  if (unit.whole) context_.stream().wait(unit.arrived);
}

void Unsharder::wait_gathered(FlatParameter& unit) {
  unit.is_waited_for = true;
  if (!unit.is_never_gathered()) {
    wait_unsharded(unit);
    // Not before: compute work that got its memory would wait for a gather ahead of it.
    unit.bucket.release(unshard(), unit.gathered);
    unit.staged.release(unshard(), unit.gathered);
  } else {
    context_.stream().wait(unit.updated);
  }
  const Buffer full = full_buffer(unit);
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout->views()[i];
    if (!view.is_whole) unit.parameters[i]->bind(full.slice(view.offset, view.numel));
    if (view.is_whole && unit.whole)
      unit.parameters[i]->bind(unit.whole.buffer(DType::f32, unit.layout->whole_elems())
                                   .slice(view.offset - unit.layout->gathered_elems(), view.numel));
  }
}

void Unsharder::unbind(FlatParameter& unit) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    if (!unit.layout->views()[i].is_whole || unit.is_staged()) unit.parameters[i]->unbind();
  }
}

void Unsharder::free_full(FlatParameter& unit) {
  unbind(unit);
  if (unit.is_never_gathered()) return;
  // A prefetch that nobody used still reads the master weights, which compute may write next.
  if (!unit.is_waited_for) wait_unsharded(unit);
  unit.is_open = false;
  unit.bucket.release(unshard(), unit.gathered);
  unit.staged.release(unshard(), unit.gathered);
  unit.full.release(context_.stream());
  unit.whole.release(context_.stream());
}

void Unsharder::defer_free(FlatParameter& unit) {
  unbind(unit);
  unit.is_open = false;
  if (unit.is_never_gathered()) return;
  Aside& aside = deferred_.emplace_back(Aside{&unit, std::move(unit.full), std::move(unit.whole), {}});
  // Else it was a view, whose turn comes all the same.
  if (aside.full || aside.whole) context_.stream().record(aside.last_use);
}

void Unsharder::free_deferred(FlatParameter& unit) {
  if (unit.is_never_gathered()) return;
  const auto oldest =
      std::find_if(deferred_.begin(), deferred_.end(), [&](const Aside& aside) { return aside.unit == &unit; });
  ZS_CHECK(oldest != deferred_.end(), "unit {} has set no buffer aside", unit.name);
  oldest->full.release(context_.stream(), oldest->last_use);
  oldest->whole.release(context_.stream(), oldest->last_use);
  deferred_.erase(oldest);
}

void Unsharder::masters_updated() { context_.stream().record(masters_ready_); }

Buffer Unsharder::gather_masters(FlatParameter& unit, Memory& memory) {
  if (unit.is_encoded()) return decode_all(unit, memory);
  const DType dtype = unit.weights_buffer().dtype;
  if (unit.is_zero_copy() && unit.shared.dtype == dtype && unit.precision.gather_format == nullptr) {
    publish(unit);
    return unit.shared;
  }
  wait_masters(unit);
  const std::int64_t elems = unit.layout->gathered_shard_elems();
  const bool has_all = unit.layout->ranks() == 1 && !unit.layout->is_interleaved();
  if (has_all && !unit.has_masters_on_host()) return unit.weights_buffer().slice(0, elems);
  if (unit.has_masters_on_host()) {
    HostLink::Window window = link_.load(unit.name, {unit.master_buffer().slice(0, elems)});
    unshard().wait(window.arrived);
    memory = copy_shards(unit, window[0]);
    HostLink::drop(std::move(window), unshard());
  } else {
    memory = copy_shards(unit, unit.weights_buffer().slice(0, elems));
  }
  return memory.buffer(dtype, unit.layout->gathered_elems());
}

Memory Unsharder::copy_masters(FlatParameter& unit) {
  Memory memory;
  const Buffer full = gather_masters(unit, memory);
  const bool is_cast = full.dtype != DType::f32;
  if ((memory && !is_cast) || full.empty()) return memory;
  const MemoryOwner owner(context_.device().memory(), unit.name);
  Memory copy = acquire(full.elems, DType::f32, unshard(), "full_param");
  if (is_cast) {
    cast(unit, copy.buffer(DType::f32, full.elems), full);
    return copy;
  }
  memory = std::move(copy);
  unshard().enqueue({"copy_masters:" + unit.name, {full}, {memory.buffer(DType::f32, full.elems)}},
                    [&kernels = context_.kernels(), full, out = memory.buffer(DType::f32, full.elems)](
                        ExecContext& exec) { kernels.copy(exec, out, full); });
  return memory;
}

Memory Unsharder::copy_shards(FlatParameter& unit, const Buffer& shard) {
  const MemoryOwner owner(context_.device().memory(), unit.name);
  Memory memory = acquire(unit.layout->gathered_elems(), shard.dtype, unshard(), "full_param");
  const Buffer full = memory.buffer(shard.dtype, unit.layout->gathered_elems());
  if (full.empty()) return memory;
  const std::int64_t through = unit.groups().gather->size() * shard.elems;
  Memory between;
  gather_to(unit, full, between, [&](const Buffer& bucket) {
    if (through == bucket.elems) return unit.groups().gather->all_gather(unshard(), unit.name, shard, bucket);
    const Memory kept = acquire(through, shard.dtype, unshard(), "full_param");
    unit.groups().gather->all_gather(unshard(), unit.name, shard, kept.buffer(shard.dtype, through));
    unit.groups().gather_small->all_gather(unshard(), unit.name, kept.buffer(shard.dtype, through), bucket);
  });
  return memory;
}

}  // namespace zs
