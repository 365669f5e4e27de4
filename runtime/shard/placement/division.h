#pragma once

#include <cstdint>

namespace zs {

/// Divisor of a reduction's sum over the ranks. `before` is applied to a rank's own gradient when it is complete,
/// `after` to the sum, when the optimizer takes it.
struct Division {
  enum class Rule : std::uint8_t {
    none,  ///< divides by nothing: the loss is scaled by whoever calls backward
    mean,  ///< divides by the number of ranks, after: each rank's loss is the mean of its own samples
    /// Divides by the number of ranks, in two halves near its square root, so that neither gradients nor sums leave a
    /// narrow range
    split_root,
    custom,       ///< divides by `factor`, before
    custom_last,  ///< divides by `factor`, after
  };
  Rule rule = Rule::mean;
  float factor = 1;  ///< factor of the custom rules

  struct Factors {
    float before = 1, after = 1;
  };
  Factors factors(int ranks) const;
  bool operator==(const Division&) const = default;
};

}  // namespace zs
