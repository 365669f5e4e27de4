#pragma once

#include <cstdint>

#include "kernels/stochastic_rounding.h"

namespace zs {

/// True if dropout keeps the element of this index: on every back end from this source. threshold: see
/// dropout_threshold.
static constexpr bool is_kept(std::uint64_t key, std::uint64_t index, std::uint32_t threshold) {
  const std::uint32_t low = static_cast<std::uint32_t>(index), high = static_cast<std::uint32_t>(index >> 32);
  const std::uint32_t first = mix32(low * 0x9e3779b9u + static_cast<std::uint32_t>(key));
  return mix32(first ^ mix32(high + static_cast<std::uint32_t>(key >> 32))) >= threshold;
}

/// Threshold below which random numbers, of all 2^32, drop their element.
static constexpr std::uint32_t dropout_threshold(float probability) {
  return static_cast<std::uint32_t>(static_cast<double>(probability) * 4294967296.0);
}

}  // namespace zs
