#include "runtime/shard/execute/deferred_updates.h"

#include <algorithm>
#include <utility>

namespace zs {

void DeferredUpdates::defer(std::vector<int> units, Update update) {
  settle();
  const auto place_of = [&](int unit) { return std::find(gathered_.begin(), gathered_.end(), unit); };
  std::stable_sort(units.begin(), units.end(), [&](int a, int b) { return place_of(a) < place_of(b); });
  due_.assign(units.rbegin(), units.rend());
  update_ = std::move(update);
  gathered_.clear();
}

void DeferredUpdates::before_gather(int unit) {
  if (std::find(gathered_.begin(), gathered_.end(), unit) == gathered_.end()) gathered_.push_back(unit);
  while (std::find(due_.begin(), due_.end(), unit) != due_.end()) update_next();
}

void DeferredUpdates::settle() {
  while (!due_.empty()) update_next();
}

/// Makes the next update, in a phase of its own within a forward's.
void DeferredUpdates::update_next() {
  const int unit = due_.back();
  due_.pop_back();
  Trace& trace = context_.device().trace();
  const char* const phase = trace.phase();
  trace.set_phase("optimizer");
  try {
    update_(unit, due_.empty() ? std::nullopt : std::optional(due_.back()));
  } catch (...) {  // thrown by a device that has failed
    due_.clear();
    throw;
  }
  trace.set_phase(phase);
}

}  // namespace zs
