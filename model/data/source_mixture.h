#pragma once

#include <cstdint>
#include <vector>

namespace zs {

/// Which source each sample of a run comes from, so that each has its share of them: of every 10,000 samples, to the
/// nearest whole number, and after any number of them to within one. It follows from the weights alone. Immutable.
class SourceMixture {
 public:
  static constexpr std::int64_t kCycle = 10'000;

  /// Above 0; how they relate to each other counts.
  explicit SourceMixture(const std::vector<double>& weights);

  struct Place {
    std::size_t source;
    std::int64_t sample;  ///< of those of the source
  };
  Place at(std::int64_t sample) const;
  /// Of each source in a cycle.
  const std::vector<std::int64_t>& counts() const { return counts_; }

 private:
  std::vector<Place> cycle_;
  std::vector<std::int64_t> counts_;
};

}  // namespace zs
