#include "runtime/shard/unsharder.h"

namespace zs {

Unsharder::Unsharder(Context& context, const ShardScheme& scheme, ShardGroups& groups, Pool& pool, DType param)
    : context_(context), groups_(groups), kept_(scheme.slice(groups.kept)), pool_(pool), param_(param) {}

Memory Unsharder::acquire(std::int64_t elems, DType dtype, Stream& stream, const char* label) {
  return pool_.acquire(elems * size_of(dtype), stream, label);
}

Buffer Unsharder::full_buffer(const FlatParameter& unit) const {
  return is_whole(unit) ? unit.param_buffer() : unit.full.buffer(param_, unit.layout.full_elems());
}

Buffer Unsharder::begin(FlatParameter& unit) {
  unit.full = acquire(unit.layout.full_elems(), param_, unshard(), "full_param");
  return full_buffer(unit);
}

void Unsharder::gather(FlatParameter& unit) {
  unit.is_waited_for = false;
  if (is_whole(unit)) return;
  unshard().wait(masters_ready_);
  const MemoryOwner owner(context_.device().memory(), unit.name);
  const Buffer full = begin(unit);
  groups_.gather->all_gather(unshard(), unit.name, unit.param_buffer(), full);
  unshard().record(unit.gathered);
}

void Unsharder::gather_through(FlatParameter& unit) {
  unit.is_waited_for = false;
  unshard().wait(masters_ready_);
  const MemoryOwner owner(context_.device().memory(), unit.name);
  unit.kept = acquire(kept_elems(unit), param_, unshard(), "kept_shard");
  const Buffer kept = unit.kept.buffer(param_, kept_elems(unit)), full = begin(unit);
  groups_.gather->all_gather(unshard(), unit.name, unit.param_buffer(), kept);
  groups_.gather_small->all_gather(unshard(), unit.name, kept, full);
  unshard().record(unit.gathered);
}

void Unsharder::gather_kept(FlatParameter& unit) {
  unit.is_waited_for = false;
  unshard().wait(unit.kept_ready);
  const MemoryOwner owner(context_.device().memory(), unit.name);
  const Buffer full = begin(unit);
  groups_.gather_small->all_gather(unshard(), unit.name, unit.kept.buffer(param_, kept_elems(unit)), full);
  unshard().record(unit.gathered);
}

void Unsharder::keep_shard(FlatParameter& unit) {
  const MemoryOwner owner(context_.device().memory(), unit.name);
  unit.kept = acquire(kept_elems(unit), param_, context_.stream(), "kept_shard");
  const Buffer out = unit.kept.buffer(param_, kept_elems(unit)), in = full_buffer(unit).slice(kept_.index * out.elems, out.elems);
  context_.launch({"keep_shard:" + unit.name, {in}, {out}},
                  [&kernels = context_.kernels(), out, in](ExecContext& exec) { kernels.copy(exec, out, in); });
  context_.stream().record(unit.kept_ready);
}

void Unsharder::drop_shard(FlatParameter& unit) { unit.kept.release(unshard()); }

void Unsharder::wait_gathered(FlatParameter& unit) {
  unit.is_waited_for = true;
  if (!is_whole(unit)) context_.stream().wait(unit.gathered);
  const Buffer full = full_buffer(unit);
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout.views()[i];
    unit.parameters[i]->bind(full.slice(view.offset, view.numel));
  }
}

void Unsharder::free_full(FlatParameter& unit) {
  for (Parameter* parameter : unit.parameters) parameter->unbind();
  if (is_whole(unit)) return;
  // A prefetch that nobody used still reads the master weights, which compute may write next.
  if (!unit.is_waited_for) context_.stream().wait(unit.gathered);
  unit.full.release(context_.stream());
}

void Unsharder::masters_updated() { context_.stream().record(masters_ready_); }

Memory Unsharder::gather_masters(FlatParameter& unit) {
  unshard().wait(masters_ready_);
  const MemoryOwner owner(context_.device().memory(), unit.name);
  Memory memory = acquire(unit.layout.full_elems(), DType::f32, unshard(), "full_param");
  const Buffer full = memory.buffer(DType::f32, unit.layout.full_elems());
  const std::int64_t through = groups_.gather->size() * unit.layout.shard_elems();
  if (through == unit.layout.full_elems()) {
    groups_.gather->all_gather(unshard(), unit.name, unit.master_buffer(), full);
  } else {
    const Memory kept = acquire(through, DType::f32, unshard(), "full_param");
    groups_.gather->all_gather(unshard(), unit.name, unit.master_buffer(), kept.buffer(DType::f32, through));
    groups_.gather_small->all_gather(unshard(), unit.name, kept.buffer(DType::f32, through), full);
  }
  return memory;
}

}  // namespace zs
