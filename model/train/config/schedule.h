#pragma once

#include <cstdint>

#include "model/train/config/config.h"

namespace zs {

/// LrSchedule::at of what the configuration says.
double learning_rate(const Config::Train& train, std::int64_t step);

/// LrSchedule::decay_steps.
std::int64_t wsd_decay_steps(const Config::Train& train);

}  // namespace zs
