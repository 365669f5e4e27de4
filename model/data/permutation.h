#pragma once

#include <bit>
#include <cstdint>

#include "runtime/base/check.h"
#include "runtime/base/random.h"

namespace zs {

/// A keyed bijection of [0, size) in O(1) memory: a Feistel network (Luby and Rackoff 1988) over the next even number
/// of bits, walked until it lands inside (Black and Rogaway 2002, "cycle walking"; at most 4 tries on average).
/// Immutable.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key) : size_(size), key_(mix64(key)) {
    ZS_CHECK(size >= 1 && size <= (std::uint64_t{1} << 62), "permutation of {} elements", size);
    const int bits = std::bit_width(size - 1);
    half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
    half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
  }

  std::uint64_t operator()(std::uint64_t index) const {
    ZS_CHECK(index < size_, "index {} of a permutation of {}", index, size_);
    do {
      index = encrypt(index);
    } while (index >= size_);
    return index;
  }

 private:
  // Four rounds are a pseudorandom permutation for large halves; small domains want more.
  static constexpr std::uint64_t kRounds = 8;

  std::uint64_t encrypt(std::uint64_t block) const {
    std::uint64_t left = block >> half_bits_, right = block & half_mask_;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = left ^ (mix64(key_ + mix64((right << 8) | round)) & half_mask_);
      left = right;
      right = mixed;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t size_, key_;
  int half_bits_ = 1;
  std::uint64_t half_mask_ = 1;
};

}  // namespace zs
