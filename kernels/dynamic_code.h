#pragma once

#include <cstdint>

#include "kernels/host_device.h"

/// Elements as codes of 8 bits, in blocks that each have a scale: the dynamic data type of Dettmers et al. 2022 (8-bit
/// optimizers via block-wise quantization). The CPU's kernels and the GPU's read it from here, so that it gives the
/// same bits everywhere. Functions are static because an instruction set's own copy must stay its own
/// (kernels/cpu/isa.h).
namespace zs {

/// A scale is the largest magnitude of so many elements of a parameter, counted from its first one, whoever holds them.
inline constexpr std::int64_t kCodeBlockElems = 256;
inline constexpr int kCodes = 256;

/// Elements of a parameter that a part of it has, as ShardSegment says it: runs of `run` elements, which begin `stride`
/// apart, the first one at `first`.
struct ElementRuns {
  std::int64_t first, run, stride;
};

/// The first block that a part of so many elements, at least one, has elements of; and how many lie from there to its
/// last.
static constexpr std::int64_t first_block_of(const ElementRuns& part) { return part.first / kCodeBlockElems; }
static constexpr std::int64_t blocks_of(const ElementRuns& part, std::int64_t elems) {
  const std::int64_t last = part.first + (elems / part.run - 1) * part.stride + part.run - 1;
  return last / kCodeBlockElems - first_block_of(part) + 1;
}

/// Values that the codes stand for, ascending, before they are scaled: 0, 1, and 7 decades below 1, of which each has
/// twice as many values as the one below it, in the middles of equal parts. Signed ones have half as many, of both
/// signs (but no -1).
struct DynamicCodes {
  float values[kCodes];
};
static constexpr DynamicCodes dynamic_codes(bool is_signed) {
  constexpr int kDecades = 7;
  constexpr double kLowest[kDecades] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  DynamicCodes codes{};
  const int zero = is_signed ? kCodes / 2 - 1 : 0;
  int at = zero + 1;
  for (int decade = 0; decade < kDecades; ++decade) {
    const int count = (is_signed ? 1 : 2) << decade;
    for (int i = 0; i < count; ++i, ++at) {
      codes.values[at] = static_cast<float>(kLowest[decade] * (0.1 + 0.9 * (2 * i + 1) / (2 * count)));
      if (is_signed) codes.values[2 * zero - at] = -codes.values[at];
    }
  }
  codes.values[at] = 1.0f;
  return codes;
}

/// Between a code and the next: below, the lower one is nearer.
ZS_HOST_DEVICE float middle_above(const float* values, int code) { return 0.5f * (values[code] + values[code + 1]); }

/// The code whose value is nearest to x, the lower of two; the first of NaN. middles: kCodes - 1, as middle_above says.
ZS_HOST_DEVICE int nearest_code(const float* middles, float x) {
  int code = 0;
  for (int step = kCodes / 2; step > 0; step /= 2) code += x > middles[code + step - 1] ? step : 0;
  return code;
}
/// Nearest code of a second moment, whose codes are not signed: what is above 0 stays so, since a step is divided by
/// it.
ZS_HOST_DEVICE int nearest_code_above_zero(const float* middles, float x) {
  const int code = nearest_code(middles, x);
  return code == 0 && x > 0.0f ? 1 : code;
}

}  // namespace zs
