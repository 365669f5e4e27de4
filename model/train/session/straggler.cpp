#include "model/train/session/straggler.h"

#include <fmt/format.h>

#include <algorithm>

namespace zs {

std::string StragglerWatch::after_step(const StepWaits& waits, double step_s) {
  steps_.push_back({waits.slowest, waits.most_s - waits.least_s, step_s});
  if (steps_.size() > kSteps) steps_.pop_front();
  if (quiet_ > 0) --quiet_;
  if (steps_.size() < kSteps || quiet_ > 0 || (says_once_ && has_said_)) return {};
  std::deque<int> ranks;  // their median is the slow one, if there is one
  double lost_s = 0, all_s = 0;
  for (const Step& step : steps_) {
    ranks.push_back(step.slowest);
    lost_s += step.lost_s;
    all_s += step.step_s;
  }
  std::nth_element(ranks.begin(), ranks.begin() + kSteps / 2, ranks.end());
  const int rank = ranks[kSteps / 2];
  const auto named =
      std::count_if(steps_.begin(), steps_.end(), [&](const Step& step) { return step.slowest == rank; });
  if (named < kSameRank || lost_s < std::max(kShare * all_s, kLeast_s * kSteps)) return {};
  quiet_ = kQuietSteps;
  has_said_ = true;
  return fmt::format("rank {} is slow: in the last {} steps others waited for it {:.0f} % of the time", rank, kSteps,
                     100 * std::min(1.0, lost_s / all_s));
}

}  // namespace zs
