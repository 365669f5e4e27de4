#pragma once

#include <cstdint>

#include "model/train/config.h"

namespace zs {

/// Learning rate of step t in [0, steps), with lr the peak and r = min_lr_ratio:
///   warm-up, t < warmup:  lr (t + 1) / warmup                                     (linear; Goyal et al. 2017)
///   constant:             lr
///   cosine:               lr (r + (1 - r) (1 + cos(pi x)) / 2)                    (Loshchilov and Hutter 2017, eq. 5)
///   linear:               lr (r + (1 - r) (1 - x))
///   wsd:                  lr, then over the last D steps (wsd_decay_steps)
///                         lr (r + (1 - r) (1 - sqrt((t + 1 - (steps - D)) / D)))  (Haegele et al. 2024, eq. 1, whose n is t + 1)
/// where x = (t - warmup) / (steps - warmup). Steps past the end keep the last value.
double learning_rate(const Config::Train& train, std::int64_t step);

/// Steps below the peak at the end of a `wsd` run: `decay` x `steps` without its fraction, at least 1.
std::int64_t wsd_decay_steps(const Config::Train& train);

}  // namespace zs
