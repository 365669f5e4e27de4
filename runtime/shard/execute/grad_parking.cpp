// Accumulating gradients, on their way to the host between micro-batches and back.
#include <utility>

#include "runtime/shard/execute/grad_reducer.h"

namespace zs {

Buffer GradReducer::parked_buffer(const FlatParameter& unit) {
  return unit.is_parked_full ? unit.host_full_grad.buffer(unit.grad_dtype, unit.layout->full_elems())
                             : unit.kept_grad_buffer();
}

/// Parks the gradient; if nobody has added to it since it came back, the host has it as it was.
void GradReducer::park_accumulated(FlatParameter& unit) {
  Memory& here = unit.full_grad ? unit.full_grad : unit.grad;
  if (unit.is_parked()) {
    if (!stays(unit)) here.release(context_.device().stream(StreamRole::offload));
    return;
  }
  const MemoryOwner owner(context_.device().memory(), unit.name);
  for (Parameter* parameter : unit.parameters) {
    unit.parked.push_back(parameter->is_grad_written());
    parameter->bind_grad();
  }
  unit.is_parked_full = static_cast<bool>(unit.full_grad);
  if (stays(unit)) return;
  if (unit.is_parked_full && !unit.host_full_grad)
    unit.host_full_grad = link_.acquire(unit.layout->full_elems() * size_of(DType::f32), "full_grad");
  HostLink::Window window{.unit = unit.name, .parts = {}, .arrived = {}};
  window.parts.push_back({parked_buffer(unit), std::move(here)});
  link_.store(std::move(window));
}

void GradReducer::reload_accumulated(FlatParameter& unit) {
  if (stays(unit)) return;
  const MemoryOwner owner(context_.device().memory(), unit.name);
  HostLink::Window window = link_.load(unit.name, {parked_buffer(unit)}, &pool_, "full_grad");
  (unit.is_parked_full ? unit.full_grad : unit.grad) = std::move(window.parts.front().memory);
  unit.reloaded = window.arrived;
}

void GradReducer::resume_accumulated(FlatParameter& unit) {
  if (!stays(unit)) context_.stream().wait(unit.reloaded);
  const Buffer full = full_buffer(unit);
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout->views()[i];
    unit.parameters[i]->bind_grad(full.slice(view.offset, view.numel), unit.parked[i]);
  }
  unit.parked.clear();
}

void GradReducer::drop_parked(FlatParameter& unit) {
  Stream& offload = context_.device().stream(StreamRole::offload);
  if (unit.full_grad) unit.full_grad.release(offload);
  if (unit.host_grad && unit.grad) unit.grad.release(offload);
  unit.parked.clear();
}

void GradReducer::park_sum(FlatParameter& unit) {
  const MemoryOwner owner(context_.device().memory(), unit.name);
  if (!unit.host_sum) unit.host_sum = link_.acquire(sum_elems(unit) * size_of(DType::f32), "grad_sum");
  HostLink::Window window{.unit = unit.name, .parts = {}, .arrived = {}};
  window.parts.push_back({unit.host_sum.buffer(DType::f32, sum_elems(unit)), std::move(unit.sum)});
  link_.store(std::move(window), unit.reduced);
}

void GradReducer::reload_sum(FlatParameter& unit) {
  const MemoryOwner owner(context_.device().memory(), unit.name);
  HostLink::Window window =
      link_.load(unit.name, {unit.host_sum.buffer(DType::f32, sum_elems(unit))}, &pool_, "grad_sum");
  unit.sum = std::move(window.parts.front().memory);
  reduction().wait(window.arrived);
  reduction().record(unit.reduced);
}

}  // namespace zs
