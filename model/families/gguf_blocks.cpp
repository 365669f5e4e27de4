#include "model/families/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "model/weights/file_dtype.h"
#include "model/weights/weight_export.h"

namespace zs {
namespace {

struct Row {
  std::uint32_t number;
  std::int64_t elems, bytes;  // one block has so many
};
constexpr std::array kRows = {Row{0, 1, 4},   Row{1, 1, 2},      Row{30, 1, 2},
                              Row{8, 32, 34}, Row{14, 256, 210}, Row{12, 256, 144}};
static_assert(kRows.size() == static_cast<std::size_t>(GgufDType::q4_k) + 1);

const Row& row_of(GgufDType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

constexpr std::size_t kSuperBlock = 256;
constexpr float kNothing = 1e-15f;  // blocks of smaller numbers are zeros
using Levels = std::array<std::uint8_t, kSuperBlock>;

/// The nearest whole number, to even, within bounds. Numbers are far below 2^22, where the sum rounds.
float level_of(float value, float least, float most) {
  constexpr float kRounds = 12582912;  // 1.5 * 2^23
  return std::clamp(value + kRounds - kRounds, least, most);
}

/// The first of those with the largest magnitude.
float largest_of(std::span<const float> values) {
  return *std::max_element(values.begin(), values.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

/// Stores a scale of f16, and returns what was stored.
float store_scale(float scale, char* out, const std::string& tensor) {
  check_overflow(FileDType::f16, &scale, 1, tensor);
  from_f32(FileDType::f16, &scale, out, 1);
  to_f32(FileDType::f16, out, &scale, 1);
  return scale;
}

void store_q8_0(const float* values, char* out, const std::string& tensor) {
  constexpr std::int64_t kElems = 32;
  float most = 0;
  for (std::int64_t i = 0; i < kElems; ++i) most = std::max(most, std::fabs(values[i]));
  const float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
  store_scale(scale, out, tensor);
  for (std::int64_t i = 0; i < kElems; ++i) out[2 + i] = static_cast<char>(std::lround(values[i] * inverse));
}

/// Fits `scale` to scale * (level - 32), levels below 64, by least squares weighted by the numbers' squares: the best
/// of nineteen ways to round.
float fit_scale(std::span<const float> values, std::uint8_t* levels) {
  constexpr float kMost = 32;
  const float largest = largest_of(values);
  std::fill_n(levels, values.size(), std::uint8_t{0});
  if (!(std::fabs(largest) >= kNothing)) return 0;
  float scale = 0, best = 0;
  const auto attempt = [&](float inverse, bool is_first) {
    float products = 0, squares = 0;
    for (const float value : values) {
      const float level = level_of(inverse * value, -kMost, kMost - 1), weight = value * value;
      products += weight * value * level;
      squares += weight * level * level;
    }
    if (!is_first && !(squares > 0 && products * products > best * squares)) return;
    for (std::size_t i = 0; i < values.size(); ++i)
      levels[i] = static_cast<std::uint8_t>(level_of(inverse * values[i], -kMost, kMost - 1) + kMost);
    scale = squares != 0 ? products / squares : 0;
    best = scale * products;
  };
  attempt(-kMost / largest, true);
  for (int step = -9; step <= 9; ++step)
    if (step != 0) attempt(-(kMost + 0.1f * static_cast<float>(step)) / largest, false);
  return scale;
}

/// 128 bytes of the lower four bits, 64 of the upper two, 16 scales, and the scale of these.
void store_q6_k(const float* values, char* out, const std::string& tensor) {
  constexpr std::size_t kGroups = 16, kElems = kSuperBlock / kGroups;
  char* const upper = out + 128;
  char* const group_scales = upper + 64;
  char* const block_scale = group_scales + kGroups;
  Levels levels;
  std::array<float, kGroups> scales;
  for (std::size_t g = 0; g < kGroups; ++g)
    scales[g] = fit_scale({values + g * kElems, kElems}, levels.data() + g * kElems);
  const float largest = largest_of(scales);
  std::fill(out, block_scale + 2, 0);
  if (!(std::fabs(largest) >= kNothing)) return;
  const float inverse = -128 / largest, stored = store_scale(1 / inverse, block_scale, tensor);
  for (std::size_t g = 0; g < kGroups; ++g) {
    const float multiple = level_of(inverse * scales[g], -128, 127), scale = stored * multiple;
    group_scales[g] = static_cast<char>(multiple);
    if (scale == 0) continue;
    for (std::size_t i = g * kElems; i < (g + 1) * kElems; ++i)
      levels[i] = static_cast<std::uint8_t>(level_of(values[i] / scale, -32, 31) + 32);
  }
  for (std::size_t i = 0; i < kSuperBlock; ++i) {
    const std::size_t half = i / 128, quarter = i % 128 / 32, place = i % 32;
    out[half * 64 + quarter % 2 * 32 + place] |= static_cast<char>((levels[i] & 15) << (quarter / 2 * 4));
    upper[half * 32 + place] |= static_cast<char>((levels[i] >> 4) << (quarter * 2));
  }
}

/// A number is scale * level + lowest, which is not above zero.
struct Line {
  float scale = 0, lowest = 0;
};

/// Fits a line to levels below 16: the best of twenty-two ways to round.
Line fit_line(std::span<const float, 32> values, std::uint8_t* levels) {
  constexpr float kMost = 15;
  std::array<float, 32> weights, rounded;
  float squares = 0;
  for (const float value : values) squares += value * value;
  const float typical = std::sqrt(squares / 32);
  float sum_w = 0, sum_x = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    weights[i] = typical + std::fabs(values[i]);
    sum_w += weights[i];
    sum_x += weights[i] * values[i];
  }
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  Line best{.scale = 0, .lowest = std::min(*least, 0.0f)};
  std::fill_n(levels, values.size(), std::uint8_t{0});
  if (!(*most > best.lowest)) return best;
  float best_error = 0;
  const auto round_to = [&](float top) {  // so that the largest number becomes `top`
    const float inverse = top / (*most - best.lowest);
    for (std::size_t i = 0; i < values.size(); ++i)
      rounded[i] = level_of(inverse * (values[i] - best.lowest), 0, kMost);
    return inverse;
  };
  const auto take_if_better = [&](const Line& line, bool is_first) {
    float error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float off = line.scale * rounded[i] + line.lowest - values[i];
      error += weights[i] * (off * off);
    }
    if (!is_first && !(error < best_error)) return;
    for (std::size_t i = 0; i < values.size(); ++i) levels[i] = static_cast<std::uint8_t>(rounded[i]);
    best = line, best_error = error;
  };
  take_if_better({1 / round_to(kMost), best.lowest}, true);
  for (int step = 0; step <= 20; ++step) {
    round_to(-1 + 0.1f * static_cast<float>(step) + kMost);
    float sum_l = 0, sum_l2 = 0, sum_xl = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float weighted = weights[i] * rounded[i];
      sum_l += weighted;
      sum_l2 += weighted * rounded[i];
      sum_xl += weighted * values[i];
    }
    const float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (!(determinant > 0)) continue;
    Line line{(sum_w * sum_xl - sum_x * sum_l) / determinant, (sum_l2 * sum_x - sum_l * sum_xl) / determinant};
    if (line.lowest > 0) line = {sum_xl / sum_l2, 0};
    take_if_better(line, false);
  }
  return best;
}

/// Puts a group's two numbers of six bits into the 12 bytes of all: the first four groups have bytes of their own, of
/// which the others take the upper bits for theirs.
void pack(std::size_t group, unsigned scale, unsigned lowest, char* packed) {
  const auto add = [&](std::size_t byte, unsigned bits) { packed[byte] = static_cast<char>(packed[byte] | bits); };
  if (group < 4) {
    add(group, scale);
    add(group + 4, lowest);
  } else {
    add(group + 4, (scale & 15) | (lowest & 15) << 4);
    add(group - 4, scale >> 4 << 6);
    add(group, lowest >> 4 << 6);
  }
}

/// The scale of scales and the scale of lowest numbers, 12 bytes of six bits each of both, 128 bytes of levels.
void store_q4_k(const float* values, char* out, const std::string& tensor) {
  constexpr std::size_t kGroups = 8, kElems = kSuperBlock / kGroups;
  char* const packed = out + 4;
  char* const pairs = packed + 12;
  Levels levels;
  std::array<Line, kGroups> lines;
  Line largest;
  for (std::size_t g = 0; g < kGroups; ++g) {
    lines[g] = fit_line(std::span<const float, kElems>(values + g * kElems, kElems), levels.data() + g * kElems);
    largest = {std::max(largest.scale, lines[g].scale), std::min(largest.lowest, lines[g].lowest)};
  }
  const float by_scale = largest.scale > 0 ? 63 / largest.scale : 0;
  const float by_lowest = largest.lowest < 0 ? 63 / -largest.lowest : 0;
  const float scale = store_scale(largest.scale / 63, out, tensor);
  const float lowest = store_scale(std::fabs(largest.lowest) / 63, out + 2, tensor);
  std::fill(packed, packed + 12, 0);
  for (std::size_t g = 0; g < kGroups; ++g) {
    const float scales = level_of(by_scale * lines[g].scale, 0, 63);
    const float lowests = level_of(by_lowest * -lines[g].lowest, 0, 63);
    const auto s = static_cast<unsigned>(scales), m = static_cast<unsigned>(lowests);
    pack(g, s, m, packed);
    const float own = scale * scales, shift = lowest * lowests;
    if (own == 0) continue;
    for (std::size_t i = g * kElems; i < (g + 1) * kElems; ++i)
      levels[i] = static_cast<std::uint8_t>(level_of((values[i] + shift) / own, 0, 15));
  }
  for (std::size_t i = 0; i < kSuperBlock / 2; ++i) {
    const std::size_t first = i / kElems * 2 * kElems + i % kElems;
    pairs[i] = static_cast<char>(levels[first] | levels[first + kElems] << 4);
  }
}

}  // namespace

std::uint32_t number_of(GgufDType dtype) { return row_of(dtype).number; }

std::int64_t block_elems(GgufDType dtype) { return row_of(dtype).elems; }

std::int64_t stored_bytes(GgufDType dtype, std::int64_t count) {
  return count / row_of(dtype).elems * row_of(dtype).bytes;
}

void store_numbers(GgufDType dtype, const float* values, std::int64_t count, char* out, const std::string& tensor) {
  const auto [number, elems, bytes] = row_of(dtype);
  if (elems == 1) {
    constexpr FileDType kTypes[] = {FileDType::f32, FileDType::f16, FileDType::bf16};
    const FileDType stored = kTypes[static_cast<std::size_t>(dtype)];
    check_overflow(stored, values, count, tensor);
    return from_f32(stored, values, out, count);
  }
  if (const float* const bad = std::find_if_not(values, values + count, [](float x) { return std::isfinite(x); });
      bad != values + count)
    throw Error(ExitCode::model, fmt::format("a weight is {}, which no block of numbers can hold", *bad), tensor,
                "export it as f32, or export an earlier checkpoint");
  const auto store = dtype == GgufDType::q8_0 ? store_q8_0 : dtype == GgufDType::q6_k ? store_q6_k : store_q4_k;
  for (std::int64_t block = 0; block < count / elems; ++block)
    store(values + block * elems, out + block * bytes, tensor);
}

}  // namespace zs
