#include "runtime/shard/schedule/exec_order.h"

#include <algorithm>

namespace zs {

void ExecOrder::begin() {
  for (List* list : {&forward_, &backward_}) {
    list->position = 0;
    if (!is_recorded_) list->units.clear();
  }
}

void ExecOrder::end() { is_recorded_ = is_recorded_ || !forward_.units.empty(); }

bool ExecOrder::advance(Phase phase, int unit) {
  List& order = list(phase);
  if (!is_recorded_) {
    order.units.push_back(unit);
    return true;
  }
  const auto due = order.units.begin() + static_cast<std::ptrdiff_t>(order.position);
  const auto found = std::find(due, order.units.end(), unit);
  if (found == order.units.end()) return false;
  order.position = static_cast<std::size_t>(found - order.units.begin()) + 1;
  return found == due;
}

std::vector<int> ExecOrder::upcoming(Phase phase, int count) const {
  const List& order = list(phase);
  if (!is_recorded_) return {};
  std::vector<int> next;
  for (std::size_t i = order.position; i < order.units.size() && std::ssize(next) < count; ++i) {
    if (i == 0 || order.units[i] != order.units[i - 1]) next.push_back(order.units[i]);
  }
  return next;
}

bool ExecOrder::is_next(Phase phase, int unit) const {
  const List& order = list(phase);
  return is_recorded_ && order.position < order.units.size() && order.units[order.position] == unit;
}

}  // namespace zs
