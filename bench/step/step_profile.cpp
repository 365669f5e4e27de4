#include "bench/step/step_profile.h"

#include <algorithm>
#include <map>

namespace zs::bench {
namespace {

std::string label_of(const OpTime& time) {
  if (time.is_wait) return "wait for " + time.name;
  return time.name.substr(0, time.name.find_first_of("(:"));
}

}  // namespace

StepProfile summarise(const Profile& profile, int steps, double window_ms) {
  StepProfile result{.steps = steps, .step_ms = window_ms / steps};
  for (int i = 0; i < kStreamRoles; ++i) {
    const auto role = static_cast<StreamRole>(i);
    std::map<std::string, StepProfile::Row> rows;
    for (const OpTime& time : profile.times(role)) {
      const std::string label = label_of(time);
      auto& row = rows.try_emplace(label, StepProfile::Row{role, label, time.is_wait, 0, 0}).first->second;
      row.calls += 1.0 / steps;
      row.ms += time.ms() / steps;
      if (role == StreamRole::compute) (time.is_wait ? result.waiting_ms : result.busy_ms) += time.ms() / steps;
    }
    const auto first = static_cast<std::ptrdiff_t>(result.rows.size());
    for (auto& [label, row] : rows) result.rows.push_back(std::move(row));
    std::sort(result.rows.begin() + first, result.rows.end(), [](const auto& a, const auto& b) { return a.ms > b.ms; });
  }
  return result;
}

}  // namespace zs::bench
