#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace zs {

/// SplitMix64's finalizer (Steele, Lea, Flood 2014): a bijection of 64-bit words with full avalanche.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// FNV-1a of a name followed by mix64: keys a random stream by what it is for, never by an index.
constexpr std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return mix64(hash);
}

/// Counter-based random numbers: the value at (key, counter) depends on nothing else, so any rank can draw any element.
class CounterRng {
 public:
  explicit constexpr CounterRng(std::uint64_t seed, std::uint64_t stream = 0) : key_(mix64(seed) ^ mix64(~stream)) {}

  constexpr std::uint64_t bits(std::uint64_t counter) const { return mix64(key_ + mix64(counter)); }
  /// Uniform in [0, 1), 53 bits.
  constexpr double uniform(std::uint64_t counter) const { return static_cast<double>(bits(counter) >> 11) * 0x1.0p-53; }
  /// Standard normal by Box and Muller (1958), one value a counter.
  double normal(std::uint64_t counter) const {
    const double u1 = uniform(2 * counter), u2 = uniform(2 * counter + 1);
    return std::sqrt(-2.0 * std::log1p(-u1)) * std::cos(2.0 * std::numbers::pi * u2);
  }

 private:
  std::uint64_t key_;
};

}  // namespace zs
