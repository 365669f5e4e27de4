#include "runtime/shard/execute/grad_reducer.h"

#include <utility>

#include "runtime/shard/execute/bucket_copy.h"

namespace zs {

void GradReducer::zero(Stream& stream, const char* name, const std::vector<Buffer>& buffers) {
  if (buffers.empty()) return;
  stream.enqueue({name, {}, buffers}, [&kernels = context_.kernels(), buffers](ExecContext& exec) {
    for (const Buffer& buffer : buffers) kernels.zero(exec, buffer);
  });
}

void GradReducer::bring_gradient(FlatParameter& unit, Stream& stream) {
  if (unit.has_transient_grad && !unit.grad)
    unit.grad = pool_.acquire(unit.layout->held_elems() * size_of(DType::f32), stream, "grad_shard");
  if (!unit.host_grad || unit.grad) return;
  const std::vector<Buffer> home{unit.kept_grad_buffer()};
  HostLink::Window window =
      unit.grad_is_written ? link_.load(unit.name, home, &pool_) : link_.open(unit.name, home, stream, pool_);
  stream.wait(window.arrived);
  unit.grad = std::move(window.parts.front().memory);
}

void GradReducer::park_gradient(FlatParameter& unit, const Event& written) {
  if (!unit.host_grad) return;
  HostLink::Window window{.unit = unit.name, .parts = {}, .arrived = {}};
  window.parts.push_back({unit.kept_grad_buffer(), std::move(unit.grad)});
  link_.store(std::move(window), written);
}

void GradReducer::begin_gradient(FlatParameter& unit) {
  const MemoryOwner owner(context_.device().memory(), unit.name);
  unit.grad_dtype = unit.accumulates ? DType::f32 : unit.precision.reduce;
  // Later micro-batches are added to the first, so that the sum is the same at any number of ranks.
  if (!unit.placement->is_alone || unit.precision.reduce != DType::f32 || unit.grad_is_written ||
      unit.layout->is_interleaved() || unit.reduction != nullptr) {
    unit.full_grad =
        pool_.acquire(unit.layout->full_elems() * size_of(unit.grad_dtype), context_.stream(), "full_grad");
  } else {
    bring_gradient(unit, context_.stream());
  }
  const Buffer full = full_buffer(unit);
  std::vector<Buffer> padding;
  for (const auto& [offset, count] : unit.layout->padding()) padding.push_back(full.slice(offset, count));
  zero(context_.stream(), "zero_padding", padding);
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout->views()[i];
    unit.parameters[i]->bind_grad(full.slice(view.offset, view.numel), false);
  }
}

void GradReducer::reduce(FlatParameter& unit) {
  const Buffer full = full_buffer(unit);
  std::vector<Buffer> unwritten;
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout->views()[i];
    if (!unit.parameters[i]->is_grad_written()) unwritten.push_back(full.slice(view.offset, view.numel));
    unit.parameters[i]->bind_grad();
  }
  zero(context_.stream(), "zero_unused", unwritten);
  if (!unit.full_grad) {
    unit.grad_is_written = true;
    Event written;
    if (unit.host_grad) context_.stream().record(written);
    return park_gradient(unit, written);
  }
  const MemoryOwner owner(context_.device().memory(), unit.name);
  if (unit.grad_dtype != unit.precision.reduce) cast_gradient(unit);
  if (unit.layout->is_interleaved()) interleave(unit);

  Event ready;
  context_.stream().record(ready);
  reduction().wait(ready);
  if (unit.placement->has_own_sum && !unit.sum) {
    unit.sum = pool_.acquire(sum_elems(unit) * size_of(DType::f32), reduction(), "grad_sum");
  }
  if (!unit.placement->has_own_sum) bring_gradient(unit, reduction());
  bool& is_written = unit.placement->has_own_sum ? unit.sum_is_written : unit.grad_is_written;
  reduce_scatter(unit, unit.placement->has_own_sum ? sum_buffer(unit) : unit.grad_buffer(),
                 is_written ? ReduceInto::accumulate : ReduceInto::overwrite);
  is_written = true;
  reduction().record(unit.reduced);
  last_reduction_ = unit.reduced;
  if (!unit.placement->has_own_sum) park_gradient(unit, unit.reduced);
}

void GradReducer::reduce_scatter(const FlatParameter& unit, const Buffer& out, ReduceInto into) {
  const Buffer full = full_buffer(unit);
  if (unit.reduction != nullptr) {
    unit.reduction->reduce({reduction(), unit.name, full, out, into, *unit.groups().reduce, context_.kernels()});
    return;
  }
  if (context_.device().kind() != DeviceKind::cuda || unit.groups().reduce->size() > 1) {
    unit.groups().reduce->reduce_scatter(reduction(), unit.name, full, out, into, unit.precision.reduce_comm_dtype);
    return;
  }
  // There is nobody to exchange anything with, and on a GPU only kernels can add.
  OpInfo info{"reduce_scatter:" + unit.name, {full}, {out}};
  if (into == ReduceInto::accumulate) info.reads.push_back(out);
  reduction().enqueue(std::move(info), [&kernels = context_.kernels(), full, out, into](ExecContext& exec) {
    into == ReduceInto::accumulate ? kernels.accumulate(exec, out, full) : kernels.cast(exec, out, full);
  });
}

/// Replaces the full gradient by what compute has made of it. One that came back from the host is the offload stream's
/// until it is used.
void GradReducer::replace_full(FlatParameter& unit, Memory memory) {
  unit.full_grad.release(context_.stream());
  unit.full_grad = std::move(memory);
}

void GradReducer::cast_gradient(FlatParameter& unit) {
  const Buffer full = full_buffer(unit);
  Memory memory = pool_.acquire(full.elems * size_of(unit.precision.reduce), context_.stream(), "full_grad");
  const Buffer out = memory.buffer(unit.precision.reduce, full.elems);
  context_.launch({"narrow_gradient", {full}, {out}},
                  [&kernels = context_.kernels(), out, full](ExecContext& exec) { kernels.cast(exec, out, full); });
  unit.grad_dtype = unit.precision.reduce;
  replace_full(unit, std::move(memory));
}

void GradReducer::interleave(FlatParameter& unit) {
  const Buffer full = full_buffer(unit);
  Memory memory = pool_.acquire(full.bytes(), context_.stream(), "full_grad");
  copy_in(context_.stream(), context_.kernels(), unit, {0, unit.layout->ranks(), unit.layout->shard_elems()}, full,
          memory.buffer(unit.grad_dtype, full.elems));
  replace_full(unit, std::move(memory));
}

void GradReducer::finish(FlatParameter& unit) {
  Stream& stream = finishing();
  stream.wait(unit.reduced);
  const MemoryOwner owner(context_.device().memory(), unit.name);
  bring_gradient(unit, stream);
  switch (unit.placement->second) {
    case Placement::SecondStep::none: break;
    case Placement::SecondStep::reduce_scatter:
      unit.groups().finish->reduce_scatter(stream, unit.name, sum_buffer(unit), unit.grad_buffer(),
                                           ReduceInto::overwrite, unit.precision.reduce_comm_dtype);
      break;
    case Placement::SecondStep::all_gather:
      unit.groups().finish->all_gather(stream, unit.name, sum_buffer(unit), unit.grad_buffer());
      break;
    case Placement::SecondStep::all_reduce:
      unit.groups().finish->all_reduce(stream, unit.name,
                                       unit.placement->is_all_reduced_each ? sum_buffer(unit) : unit.grad_buffer(),
                                       ReduceOp::sum);
      break;
  }
  if (unit.placement->is_all_reduced_each) add_to_grad(unit);
  unit.sum_is_written = false;
  unit.grad_is_written = true;
  // Not yet this unit's sum: the next unit's reduction would be given its memory, and would have to wait for this step.
  release_finished_sum();
  stream.record(last_finish_);
  park_gradient(unit, last_finish_);
  finished_sum_ = std::move(unit.sum);
}

void GradReducer::release_finished_sum() {
  if (finished_sum_) finished_sum_.release(finishing(), last_finish_);
}

void GradReducer::wait_reductions() {
  release_finished_sum();
  context_.stream().wait(last_reduction_);
  context_.stream().wait(last_finish_);
}

void GradReducer::add_to_grad(FlatParameter& unit) {
  const Buffer grad = unit.grad_buffer(), sum = sum_buffer(unit);
  const bool is_first = !unit.grad_is_written;
  std::vector<Buffer> reads{sum};
  if (!is_first) reads.push_back(grad);
  finishing().enqueue({"add_to_grad:" + unit.name, std::move(reads), {grad}},
                      [&kernels = context_.kernels(), grad, sum, is_first](ExecContext& exec) {
                        if (is_first) return kernels.copy(exec, grad, sum);
                        kernels.add(exec, grad, grad, sum);
                      });
}

void GradReducer::gather_whole(FlatParameter& unit) {
  if (unit.layout->whole_elems() == 0) return;
  bring_gradient(unit, reduction());
  const UnitLayout& layout = *unit.layout;
  const Buffer held = unit.held_grad_buffer(),
               part = unit.grad_buffer().slice(layout.gathered_shard_elems(),
                                               layout.shard_elems() - layout.gathered_shard_elems());
  reduction().wait(last_finish_);
  unit.groups().over_masters().all_gather(reduction(), unit.name, part,
                                          held.slice(layout.shard_elems(), layout.whole_elems()));
  reduction().record(last_reduction_);
  park_gradient(unit, last_reduction_);
}

void GradReducer::release_gradient(FlatParameter& unit) {
  const bool is_abandoned = !unit.parameters.empty() && unit.parameters.front()->grad().data != nullptr;
  for (Parameter* parameter : unit.parameters) parameter->bind_grad();
  if (unit.is_parked()) return drop_parked(unit);
  if (!unit.full_grad) return;
  if (is_abandoned) {
    unit.full_grad.release(context_.stream());
  } else {
    unit.full_grad.release(reduction(), unit.reduced);
  }
}

void GradReducer::clear(FlatParameter& unit) {
  unit.grad_is_written = unit.sum_is_written = false;
  if (unit.sum) unit.sum.release(reduction());
  if (unit.host_grad && unit.grad) unit.grad.release(context_.stream());  // left by an abandoned micro-batch
  release_finished_sum();
}

}  // namespace zs
