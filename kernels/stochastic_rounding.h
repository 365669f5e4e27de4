#pragma once

#include <cstdint>

/// Stochastic rounding to bf16. The CPU's kernels and the GPU's read it from here, so that it gives the same bits
/// everywhere. Functions are static because an instruction set's own copy must stay its own (kernels/cpu/isa.h).
namespace zs {

/// MurmurHash3's finalizer (Appleby 2011): every bit of the result depends on every bit of x.
static constexpr std::uint32_t mix32(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

/// `word`, an f32's bits, to the bf16 below or above, as a random number of 16 bits says, so that the mean over all of
/// them is `word` itself. The number follows from the key, the element's index and the word. What is not finite is
/// rounded to nearest.
static constexpr std::uint16_t stochastically_rounded(std::uint32_t word, std::uint64_t key, std::uint64_t index) {
  const std::uint32_t low = static_cast<std::uint32_t>(index), high = static_cast<std::uint32_t>(index >> 32);
  const std::uint32_t first = mix32(word ^ (low * 0x9e3779b9u + static_cast<std::uint32_t>(key)));
  const std::uint32_t random = mix32(first + (high ^ static_cast<std::uint32_t>(key >> 32)) + low) >> 16;
  const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u, is_finite = (word & 0x7f800000u) != 0x7f800000u;
  const std::uint32_t special = (word >> 16) | (is_nan ? 0x40u : 0u);
  return static_cast<std::uint16_t>(is_finite ? (word + random) >> 16 : special);
}

/// The index in its parameter of element i of a part of it: runs of `run` elements, which begin `stride` apart, the
/// first one at `first`.
static constexpr std::uint64_t index_in_parameter(std::int64_t first, std::int64_t run, std::int64_t stride,
                                                  std::int64_t i) {
  return static_cast<std::uint64_t>(first + i / run * stride + i % run);
}

}  // namespace zs
