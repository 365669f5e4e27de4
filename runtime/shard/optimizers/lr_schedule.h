#pragma once

#include <cstdint>
#include <string_view>

namespace zs {

/// Shape in which a learning rate falls after its warm-up: not at all, as half a cosine, evenly, or, for wsd (warm-up,
/// stable, decay), evenly at the end alone.
enum class LrShape : std::uint8_t { constant, cosine, linear, wsd };
/// Shape of this name; an unknown one is an Error(config).
LrShape lr_shape_of(std::string_view name);

/// The learning rate of a training of `steps` steps. A value.
struct LrSchedule {
  LrShape shape = LrShape::cosine;
  double lr = 1e-3;  ///< the peak
  std::int64_t steps = 1, warmup = 0;
  double min_lr_ratio = 0.1;  ///< share of the peak, at the end; not of `constant`
  double decay = 0.2;         ///< for `wsd`: the part of the steps that are below the peak at the end

  /// Learning rate of step t in [0, steps), with r = min_lr_ratio:
  ///   warm-up, t < warmup:  lr (t + 1) / warmup                      (linear; Goyal et al. 2017)
  ///   constant:             lr
  ///   cosine:               lr (r + (1 - r) (1 + cos(pi x)) / 2)     (Loshchilov and Hutter 2017, eq. 5)
  ///   linear:               lr (r + (1 - r) (1 - x))
  ///   wsd:                  lr, then over the last D steps (decay_steps)
  ///                         lr (r + (1 - r) (1 - sqrt((t + 1 - (steps - D)) / D)))
  ///                         (Haegele et al. 2024, eq. 1, whose n is t + 1)
  /// where x = (t - warmup) / (steps - warmup). Steps past the end keep the last value.
  double at(std::int64_t step) const;
  /// Steps below the peak at the end of a `wsd` training: `decay` x `steps` without its fraction, at least 1.
  std::int64_t decay_steps() const;
};

}  // namespace zs
