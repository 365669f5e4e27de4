// Slots: parameters whose scalars in a step are alike.

#include <algorithm>
#include <utility>

#include "runtime/base/random.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// One for each history of updates and scale of the learning rate; as a rule there is one alone.
void Optimizer::set_slots() {
  slots_.clear();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const auto& parameters = executor_.units()[unit].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i]->is_trainable())
        slots_.push_back({counts_.history(unit, i), units_[unit].lr_scales[i], unit, i});
  }
  const auto key_of = [](const Slot& slot) { return std::pair(slot.history, slot.lr_scale); };
  std::stable_sort(slots_.begin(), slots_.end(), [&](const Slot& a, const Slot& b) { return key_of(a) < key_of(b); });
  slots_.erase(
      std::unique(slots_.begin(), slots_.end(), [&](const Slot& a, const Slot& b) { return key_of(a) == key_of(b); }),
      slots_.end());
  const std::int64_t bytes = std::max<std::int64_t>(std::ssize(slots_), 1) *
                             static_cast<std::int64_t>(sizeof(StepScalars)) * (options_.average > 0 ? 2 : 1);
  if (scalars_.bytes() >= bytes) return;
  Context& context = executor_.context();
  scalars_.release(context.stream());
  scalars_ = context.pool().acquire(bytes, context.stream(), "scalars");
}

std::int64_t Optimizer::slot_of(std::size_t unit, std::size_t parameter) const {
  const std::uint64_t history = counts_.history(unit, parameter);
  const float lr_scale = units_[unit].lr_scales[parameter];
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& one) { return one.history == history && one.lr_scale == lr_scale; });
  ZS_CHECK(slot != slots_.end(), "no scalars for parameter {} of unit {}", parameter, unit);
  return slot - slots_.begin();
}

/// The work of an update names slots and places of counts.
std::uint64_t Optimizer::slots_key() const {
  std::uint64_t key = slots_.size();
  for (const Slot& slot : slots_)
    key = mix64(key ^ static_cast<std::uint64_t>(counts_.place(slot.unit, slot.parameter)));
  if (slots_.size() <= 1) return key;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const auto& parameters = executor_.units()[unit].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      key = mix64(key ^ (parameters[i]->is_trainable() ? static_cast<std::uint64_t>(slot_of(unit, i)) + 1 : 0));
  }
  return key;
}

/// Behind the norm of the gradients, where there is one.
void Optimizer::correct_scalars() {
  struct Correction {
    Buffer scalars, before;
    StepCorrection by;
  };
  std::vector<Correction> corrections;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    const Buffer before = counts_.of(slots_[slot].unit, slots_[slot].parameter);
    const auto number = static_cast<std::int64_t>(slot);
    corrections.push_back({scalars(number), before, definition_.correction});
    if (options_.average > 0)
      corrections.push_back({average_scalars(number), before, {StepCorrection::Kind::average, options_.average}});
  }
  if (corrections.empty()) return;
  Context& context = executor_.context();
  const Buffer all = every_scalars();
  context.launch(
      {"correct_scalars", {all, counts_.all()}, {all}},
      [&kernels = context.kernels(), first = scalars(0), corrections = std::move(corrections)](ExecContext& exec) {
        for (const auto& [scalars, before, by] : corrections) kernels.correct_scalars(exec, scalars, first, before, by);
      });
}

void Optimizer::note_update() {
  counts_.note([this](std::size_t unit, std::size_t i) { return units_[unit].slots[i]; });
}

}  // namespace zs
