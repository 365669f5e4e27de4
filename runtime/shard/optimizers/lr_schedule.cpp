#include "runtime/shard/optimizers/lr_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "runtime/base/check.h"
#include "runtime/base/usage_error.h"

namespace zs {

LrShape lr_shape_of(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {"constant", "cosine", "linear", "wsd"};
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end())
    throw Error(ExitCode::config, fmt::format("there is no schedule {}", name), {},
                "use one of constant, cosine, linear, wsd");
  return static_cast<LrShape>(found - kNames.begin());
}

std::int64_t LrSchedule::decay_steps() const {
  constexpr double kRounding = 1e-6;  // 0.29 x 100 is 28.999999999999996 in binary, and meant as 29
  const auto whole = static_cast<std::int64_t>(decay * static_cast<double>(steps) + kRounding);
  return std::clamp<std::int64_t>(whole, 1, steps);
}

double LrSchedule::at(std::int64_t step) const {
  if (step < 0 || steps < 1)
    throw UsageError(fmt::format("the learning rate of step {} of {}", step, steps),
                     "count steps from 0, of 1 or more");
  const std::int64_t t = std::min(step, steps - 1);
  if (t < warmup) return lr * static_cast<double>(t + 1) / static_cast<double>(warmup);

  const auto towards_end = [&](double height) { return lr * (min_lr_ratio + (1.0 - min_lr_ratio) * height); };
  const double x = static_cast<double>(t - warmup) / static_cast<double>(steps - warmup);
  switch (shape) {
    case LrShape::constant: return lr;
    case LrShape::cosine: return towards_end(0.5 * (1.0 + std::cos(std::numbers::pi * x)));
    case LrShape::linear: return towards_end(1.0 - x);
    case LrShape::wsd: break;
  }
  const std::int64_t decaying = decay_steps();
  // The first step of the decay is the first below the peak.
  const std::int64_t into_decay = t + 1 - (steps - decaying);
  if (into_decay <= 0) return lr;
  return towards_end(1.0 - std::sqrt(static_cast<double>(into_decay) / static_cast<double>(decaying)));
}

}  // namespace zs
