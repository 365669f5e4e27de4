#pragma once

#include <cstdint>
#include <vector>

namespace zs {

/// Mixture of sources: says which one each sample of a run comes from, so that each has its share of them: of every
/// 10,000 samples, to the nearest integer, and after any number of them to within one. It follows from the weights
/// alone. Immutable.
class SourceMixture {
 public:
  static constexpr std::int64_t kCycle = 10'000;

  /// Above 0; how they relate to each other counts.
  explicit SourceMixture(const std::vector<double>& weights);

  struct Place {
    std::size_t source;
    std::int64_t sample;  ///< index among the samples of the source
  };
  Place at(std::int64_t sample) const;
  /// Number of samples of each source in a cycle.
  const std::vector<std::int64_t>& counts() const { return counts_; }

 private:
  std::vector<Place> cycle_;
  std::vector<std::int64_t> counts_;
};

}  // namespace zs
