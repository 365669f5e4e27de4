#include "runtime/shard/optimizers/update_counts.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "runtime/base/random.h"
#include "runtime/tensor/host_view.h"

namespace zs {

void UpdateCounts::make(const Executor& executor, const std::vector<std::vector<float>>& lr_scales) {
  context_ = &executor.context();
  std::vector<std::tuple<bool, float, std::size_t, std::size_t>> order;
  for (std::size_t unit = 0; unit < lr_scales.size(); ++unit) {
    const std::size_t count = lr_scales[unit].size();
    places_.emplace_back(count);
    histories_.emplace_back(count);
    was_updated_.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i)
      order.emplace_back(!executor.units()[unit].parameters[i]->is_trainable(), lr_scales[unit][i], unit, i);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [is_frozen, lr_scale, unit, parameter] : order) places_[unit][parameter] = parameters_++;
  if (parameters_ == 0) return;
  memory_ = context_->pool().acquire(parameters_ * static_cast<std::int64_t>(sizeof(UpdateCount)), context_->stream(),
                                     "scalars");
  context_->launch({"zero_counts", {}, {all()}},
                   [&kernels = context_->kernels(), out = all()](ExecContext& exec) { kernels.zero(exec, out); });
}

void UpdateCounts::count(const SlotOf& slot_of, const Buffer& scalars) const {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(parameters_), kNone);  // by place
  for (std::size_t unit = 0; unit < places_.size(); ++unit)
    for (std::size_t i = 0; i < places_[unit].size(); ++i)
      slots[static_cast<std::size_t>(places_[unit][i])] = slot_of(unit, i);
  std::vector<std::pair<Buffer, Buffer>> runs;  // counts, scalars
  for (std::size_t begin = 0, end = 0; begin < slots.size(); begin = end) {
    for (end = begin + 1; end < slots.size() && slots[end] == slots[begin];) ++end;
    if (slots[begin] == kNone) continue;
    runs.emplace_back(
        all().slice(static_cast<std::int64_t>(begin) * kElems, static_cast<std::int64_t>(end - begin) * kElems),
        scalars.slice(slots[begin] * kScalars, kScalars));
  }
  if (runs.empty()) return;
  context_->launch({"count_updates", {all(), scalars}, {all()}},
                   [&kernels = context_->kernels(), runs = std::move(runs)](ExecContext& exec) {
                     for (const auto& [counts, of_slot] : runs) kernels.count_updates(exec, counts, of_slot);
                   });
}

void UpdateCounts::note(const SlotOf& slot_of) {
  ++noted_;
  for (std::size_t unit = 0; unit < histories_.size(); ++unit) {
    for (std::size_t i = 0; i < histories_[unit].size(); ++i) {
      if (slot_of(unit, i) == kNone) continue;
      histories_[unit][i] = mix64(histories_[unit][i] ^ static_cast<std::uint64_t>(noted_));
      was_updated_[unit][i] = true;
    }
  }
}

UpdateCounts::Progress UpdateCounts::read() const {
  Progress progress(places_.size());
  if (parameters_ == 0) return progress;
  const HostView view(*context_, context_->stream(), all());
  for (std::size_t unit = 0; unit < places_.size(); ++unit)
    for (const std::int64_t place : places_[unit])
      progress[unit].push_back(reinterpret_cast<const UpdateCount*>(view.as<double>())[place]);
  return progress;
}

void UpdateCounts::set(const Progress& progress) {
  if (parameters_ == 0) return;
  std::vector<double> values(static_cast<std::size_t>(parameters_ * kElems));
  for (std::size_t unit = 0; unit < places_.size(); ++unit) {
    for (std::size_t i = 0; i < places_[unit].size(); ++i) {
      const UpdateCount& count = progress.at(unit).at(i);
      const auto at = static_cast<std::size_t>(places_[unit][i] * kElems);
      values[at] = count.updates;
      values[at + 1] = count.squared_lr;
      histories_[unit][i] = mix64(std::bit_cast<std::uint64_t>(count.updates)) ^
                            mix64(std::bit_cast<std::uint64_t>(count.squared_lr) + 1);
      was_updated_[unit][i] = count.updates > 0;
    }
  }
  context_->launch({"set_counts", {}, {all()}}, upload_of(context_->kernels(), all(), std::move(values)));
}

}  // namespace zs
