// Updates that are left for the next forward, which hides what they move between the host and the device.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "runtime/shard/optimizers/optimizer.h"
#include "runtime/tensor/host_view.h"

namespace zs {

/// Parameters that are whole are bound to their values, and can be read, without a gather. For one that is apart ranks
/// exchange, in one order, and one of them alone may be the first that needs an update which was left.
bool Optimizer::is_left(const FlatParameter& unit) const {
  if (!unit.placement->options.residence.has_any() || unit.layout->whole_elems() > 0) return false;
  const auto& views = unit.layout->views();
  return unit.layout->ranks() == 1 || !definition_.is_apart ||
         std::none_of(views.begin(), views.end(), definition_.is_apart);
}

void Optimizer::settle() noexcept {
  if (model_.has_ended()) return;
  try {
    executor_.deferred_updates().settle();
  } catch (const std::exception&) {  // thrown by a device that has failed, whose error says more
  }
}

void Optimizer::leave_updates(const std::vector<int>& units) {
  if (units.empty()) return;
  const Buffer mark = marks_.buffer(DType::f32, 2).slice(0, 1);
  const Context& context = executor_.context();
  context.launch({"mark_update", {}, {mark}},
                 upload_of(context.kernels(), mark, std::vector{-static_cast<float>(++left_steps_)}));
  executor_.deferred_updates().defer(units, [this](int unit, std::optional<int> next) {
    if (!std::exchange(is_confirmed_, true)) {
      confirm_update();
      if (host_scalars_) bring_scalars();
    }
    if (is_updated_on_host(static_cast<std::size_t>(unit)))
      return update_on_host(static_cast<std::size_t>(unit), !next);
    if (ahead_.unit.empty()) ahead_ = load(static_cast<std::size_t>(unit));
    HostLink::Window window = std::exchange(ahead_, {});
    if (next && !is_updated_on_host(static_cast<std::size_t>(*next))) ahead_ = load(static_cast<std::size_t>(*next));
    update_unit(static_cast<std::size_t>(unit), std::move(window));
    executor_.context().stream().record(executor_.units()[static_cast<std::size_t>(unit)].updated);
  });
  is_confirmed_ = false;
}

/// Confirms the update: where the device failed before it came to the end of the step, and the host has caught that
/// error, the device works again; then the updates of that step are skipped, as they would have been.
void Optimizer::confirm_update() {
  const Context& context = executor_.context();
  context.stream().wait(scalars_read_);
  const Buffer marks = marks_.buffer(DType::f32, 2), mark = marks.slice(0, 1), missing = marks.slice(1, 1);
  context.launch({"number_update", {}, {missing}},
                 upload_of(context.kernels(), missing, std::vector{static_cast<float>(left_steps_)}));
  std::vector<Buffer> skips;
  for (std::int64_t slot = 0; slot < slot_count(); ++slot)
    skips.push_back(scalars(slot).slice(offsetof(StepScalars, skip) / sizeof(float), 1));
  std::vector<Buffer> reads = skips, writes = skips;
  reads.insert(reads.end(), {mark, missing});
  writes.push_back(missing);
  context.launch({"confirm_update", std::move(reads), std::move(writes)},
                 [&kernels = context.kernels(), mark, missing, skips](ExecContext& exec) {
                   kernels.add(exec, missing, missing, mark);
                   for (const Buffer& skip : skips) kernels.add(exec, skip, skip, missing);
                 });
}

}  // namespace zs
