// Updates by the host's processors, of what the host keeps, where it lies.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/device/host_call.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

bool Optimizer::is_updated_on_host(std::size_t unit) const {
  const FlatParameter& flat = executor_.units()[unit];
  return flat.placement->options.residence.updates_on_host && !flat.is_frozen;
}

void Optimizer::start_updates_on_host() {
  bool has_any = false;
  for (std::size_t unit = 0; unit < executor_.units().size(); ++unit) {
    if (!is_updated_on_host(unit)) continue;
    const FlatParameter& flat = executor_.units()[unit];
    const Residence& residence = flat.placement->options.residence;
    const auto need = [&](bool is_met, const char* what, const char* what_to_do) {
      if (!is_met) throw UsageError(fmt::format("{} on the host of unit {}, {}", name_, flat.name, what), what_to_do);
    };
    need(!definition_.is_apart && has_plain_state() && !has_average(), "which is there for AdamW, Lion and Sgd alone",
         "set updates_on_host = false, or choose one of these without an average of the weights");
    need(residence.has_masters_on_host, "which does not keep its weights", "set has_masters_on_host");
    need(residence.has_moments_on_host || definition_.state.empty(), "which does not keep its moments",
         "set has_moments_on_host");
    need(residence.has_gradients_on_host, "which does not keep its gradients", "set has_gradients_on_host");
    need(residence.masters_disk.empty() && residence.moments_disk.empty(), "whose disk keeps what is updated",
         "keep it in the host's memory, or set updates_on_host = false");
    has_any = true;
  }
  if (has_any) host_scalars_ = executor_.link().acquire(sizeof(StepScalars), "scalars");
}

/// The step's scalars, for the updates that the host makes from now on, which come after all that compute has done.
void Optimizer::bring_scalars() {
  Context& context = executor_.context();
  const Buffer here = all_scalars();
  if (host_scalars_.bytes() < here.bytes()) {
    host_scalars_.release(context.device().stream(StreamRole::offload));
    host_scalars_ = executor_.link().acquire(here.bytes(), "scalars");
  }
  scalars_read_ = executor_.link().send_down("scalars", host_scalars_.buffer(here.dtype, here.elems), here);
  context.device().stream(StreamRole::finish).wait(scalars_read_);
}

struct Optimizer::HostWork {
  UnitUpdate update;
  std::vector<Part> parts;
  std::vector<Part> kept;  // parts of which the copy alone is made: what is not trained, and padding
  int threads;

  void operator()() const {
    ExecContext exec(threads, nullptr);
    std::vector<Slice> slices;
    for (const Part& part : parts) slices.push_back(part.slice);
    update(exec, slices);
    for (const Part& part : parts) {
      if (!part.cast.empty() || part.slice.step().skip != 0) copy(exec, part);
    }
    for (const Part& part : kept) copy(exec, part);
  }

 private:
  static void copy(ExecContext& exec, const Part& part) {
    const Buffer& out = part.cast.empty() ? part.slice.copy : part.cast;
    if (out.empty()) return;
    part.is_cast_at_random ? cpu_kernels().stochastic_cast(exec, out, part.slice.master, part.rounding)
                           : cpu_kernels().cast(exec, out, part.slice.master);
  }
};

/// Work of the host on a unit whose masters are `held.master`, with all of its bf16 copy, which it has no memory of.
Optimizer::HostWork Optimizer::host_work(std::size_t unit, const Held& held, const Buffer& copy) const {
  HostWork work{host_update_, parts(unit, false, held), {}, 1};
  if (const Device& device = executor_.context().device(); device.kind() == DeviceKind::cuda)
    work.threads = device.options().threads;
  const auto scalars = host_scalars_.buffer(DType::f32, slot_count() * kScalars);
  for (Part& part : work.parts) {
    part.slice.scalars = scalars.slice(part.slot * kScalars, kScalars);
    const std::int64_t offset = part.slice.master.as<float>() - held.master.as<float>();
    for (Buffer* const out : {&part.slice.copy, &part.cast})
      if (!out->empty()) *out = copy.slice(offset, out->elems);
  }
  if (copy.empty()) return work;
  const auto keep = [&](std::int64_t begin, std::int64_t end, const StochasticRounding& rounding, bool is_random) {
    if (begin == end) return;
    Part part{};
    part.slice.master = held.master.slice(begin, end - begin);
    part.cast = copy.slice(begin, end - begin);
    part.rounding = rounding;
    part.is_cast_at_random = is_random;
    work.kept.push_back(std::move(part));
  };
  std::vector<Range> ranges = units_[unit].held;
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.offset < b.offset; });
  std::int64_t end = 0;
  for (const Range& range : ranges) {
    keep(end, range.offset, {}, false);
    end = range.offset + range.count;
    if (!is_updated(unit, range.view))
      keep(range.offset, end, range.rounding, executor_.units()[unit].precision.rounds_stochastically);
  }
  keep(end, held.master.elems, {}, false);
  return work;
}

/// Updates a unit on the finish stream, which has nothing else to do once gradients are reduced. Of the bf16 copies two
/// are on their way at most.
void Optimizer::update_on_host(std::size_t unit, bool is_last) {
  FlatParameter& flat = executor_.units()[unit];
  Device& device = executor_.context().device();
  Stream &host = device.stream(StreamRole::finish), &offload = device.stream(StreamRole::offload);
  const auto& slots = units_[unit].slots;
  if (std::any_of(slots.begin(), slots.end(), [](std::int64_t slot) { return slot != kNotUpdated; })) {
    const Buffer home = flat.compute_copy_buffer();
    Memory memory;
    if (!home.empty()) memory = device.pinned_memory().acquire(home.bytes(), host, "param_window");
    const Buffer copy = home.empty() ? Buffer{} : memory.buffer(home.dtype, home.elems);
    Held held{flat.master_buffer(), flat.kept_grad_buffer(), {}};
    for (std::size_t i = 0; i < definition_.state.size(); ++i) held.states.push_back(state(i, unit));
    OpInfo info{
        kind_ + "_on_host:" + flat.name, {held.grad, host_scalars_.buffer(DType::f32, slot_count() * kScalars)}, {}};
    info.reads.push_back(held.master);
    info.writes.push_back(held.master);
    for (const Buffer& state : held.states) {
      info.reads.push_back(state);
      info.writes.push_back(state);
    }
    if (!copy.empty()) info.writes.push_back(copy);
    host.enqueue(std::move(info),
                 [work = host_work(unit, held, copy)](ExecContext& exec) { call_on_host(exec, work); });
    Event made;
    host.record(made);
    executor_.link().send_up(flat.name, home, copy, made, flat.updated);
    if (host_copy_) host_copy_.release(offload, host_copy_read_);
    host_copy_ = std::move(memory);
    host_copy_read_ = flat.updated;
  }
  if (is_last && host_copy_) host_copy_.release(offload, host_copy_read_);
}

/// Updates units with parameters that are whole, which are bound to their values and can be read at any time.
void Optimizer::update_on_host_now(const std::vector<std::size_t>& units) {
  if (units.empty()) return;
  bring_scalars();
  for (const std::size_t unit : units) update_on_host(unit, unit == units.back());
  for (const std::size_t unit : units) executor_.context().stream().wait(executor_.units()[unit].updated);
}

}  // namespace zs
