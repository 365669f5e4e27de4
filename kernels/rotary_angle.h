#pragma once

#include <cstdint>

/// Angles by which rotary positions turn (Su et al. 2021). The CPU's kernels and the GPU's compute it from the same
/// source, by plain f64 arithmetic that no compiler of them may fuse: the same bits everywhere. Functions are static
/// because an instruction set's own copy must stay its own (kernels/cpu/isa.h).
namespace zs {

/// Turns of a pair from one position to the next: base^(-2 pair / head_dim) / (2 pi). ratio: base^(-2 / head_dim).
static constexpr double rotary_turns(double ratio, std::int64_t pair) {
  double turns = 0.15915494309189533577, power = ratio;
  for (std::int64_t rest = pair; rest > 0; rest /= 2, power *= power)
    if (rest % 2 != 0) turns *= power;
  return turns;
}

/// Scaling that turns positions beyond those of a first training by less: all angles by 1 / factor (Chen et al. 2023,
/// position interpolation), or, with a context, so many positions of that training, as Llama 3.1 does it: pairs that
/// turn less than `low` times in the context by 1 / factor, those that turn more than `high` times as before, and what
/// lies between by a mean of both; or, with the end of a ramp, by which pair it is (Peng et al. 2023, YaRN): pairs up
/// to `first` turn as before, those from `last` on by 1 / factor, and queries and keys are multiplied with `amplitude`.
struct RotaryScaling {
  double factor = 1;  // 1: none
  double low = 1, high = 4;
  std::int64_t context = 0;
  double first = 0, last = 0;  // pairs, which need not be integers; last 0: there is no ramp
  float amplitude = 1;
};

static constexpr double scaled_turns(double turns, std::int64_t pair, const RotaryScaling& scaling) {
  if (scaling.factor == 1) return turns;
  const double slow = turns / scaling.factor;
  if (scaling.last > 0) {
    const double along = (static_cast<double>(pair) - scaling.first) / (scaling.last - scaling.first),
                 part = along < 0   ? 0
                        : along > 1 ? 1
                                    : along;
    return part * slow + (1 - part) * turns;
  }
  if (scaling.context == 0) return slow;
  const double times = static_cast<double>(scaling.context) * turns;
  if (times < scaling.low) return slow;
  if (times > scaling.high) return turns;
  const double share = (times - scaling.low) / (scaling.high - scaling.low);
  return (1 - share) * slow + share * turns;
}

struct Rotation {
  float cosine, sine;
};

/// Rotation by so many turns, at most 2^49 of them. Taylor's series up to x^16, of the part of the angle beyond the
/// nearest quarter of a turn: what it leaves out is less than 1e-16.
static constexpr Rotation rotation_by(double turns) {
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const double shifted = 4 * turns + kRound, x = 6.28318530717958647692 * (turns - 0.25 * (shifted - kRound)),
               square = x * x;
  const std::uint64_t quarter = __builtin_bit_cast(std::uint64_t, shifted);
  double sine = -1.0 / 1307674368000, cosine = 1.0 / 20922789888000;
  sine = sine * square + 1.0 / 6227020800;
  sine = sine * square - 1.0 / 39916800;
  sine = sine * square + 1.0 / 362880;
  sine = sine * square - 1.0 / 5040;
  sine = sine * square + 1.0 / 120;
  sine = sine * square - 1.0 / 6;
  sine = x + x * square * sine;
  cosine = cosine * square - 1.0 / 87178291200;
  cosine = cosine * square + 1.0 / 479001600;
  cosine = cosine * square - 1.0 / 3628800;
  cosine = cosine * square + 1.0 / 40320;
  cosine = cosine * square - 1.0 / 720;
  cosine = cosine * square + 1.0 / 24;
  cosine = cosine * square - 0.5;
  cosine = 1 + square * cosine;
  const double across = quarter % 2 != 0 ? sine : cosine, up = quarter % 2 != 0 ? cosine : sine;
  return {static_cast<float>((quarter + 1) % 4 >= 2 ? -across : across),
          static_cast<float>(quarter % 4 >= 2 ? -up : up)};
}

}  // namespace zs
