#include "model/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zs {

std::int64_t wsd_decay_steps(const Config::Train& train) {
  constexpr double kRounding = 1e-6;  // 0.29 x 100 is 28.999999999999996 in binary, and meant as 29
  const auto whole = static_cast<std::int64_t>(train.decay * static_cast<double>(train.steps) + kRounding);
  return std::clamp<std::int64_t>(whole, 1, train.steps);
}

double learning_rate(const Config::Train& train, std::int64_t step) {
  ZS_CHECK(step >= 0 && train.steps > 0, "step {} of {}", step, train.steps);
  const std::int64_t t = std::min(step, train.steps - 1);
  if (t < train.warmup) return train.lr * static_cast<double>(t + 1) / static_cast<double>(train.warmup);

  const auto towards_end = [&](double height) { return train.lr * (train.min_lr_ratio + (1.0 - train.min_lr_ratio) * height); };
  const double x = static_cast<double>(t - train.warmup) / static_cast<double>(train.steps - train.warmup);
  if (train.schedule == "constant") return train.lr;
  if (train.schedule == "cosine") return towards_end(0.5 * (1.0 + std::cos(std::numbers::pi * x)));
  if (train.schedule == "linear") return towards_end(1.0 - x);
  ZS_CHECK(train.schedule == "wsd", "schedule {}", train.schedule);
  const std::int64_t decay_steps = wsd_decay_steps(train);
  const std::int64_t into_decay = t + 1 - (train.steps - decay_steps);  // the first step of the decay is the first below the peak
  if (into_decay <= 0) return train.lr;
  return towards_end(1.0 - std::sqrt(static_cast<double>(into_decay) / static_cast<double>(decay_steps)));
}

}  // namespace zs
