#include "model/data/source_mixture.h"

#include <numeric>

#include "runtime/base/check.h"

namespace zs {

SourceMixture::SourceMixture(const std::vector<double>& weights) : counts_(weights.size(), 0) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  ZS_CHECK(all > 0, "{} sources that weigh {}", weights.size(), all);
  cycle_.reserve(kCycle);
  for (std::int64_t i = 1; i <= kCycle; ++i) {
    std::size_t next = 0;  // source that lacks most of what it is due after so many
    double most = -1;
    for (std::size_t source = 0; source < weights.size(); ++source) {
      const double lacking = weights[source] / all * static_cast<double>(i) - static_cast<double>(counts_[source]);
      if (lacking > most + 1e-9) most = lacking, next = source;
    }
    cycle_.push_back({next, counts_[next]++});
  }
}

SourceMixture::Place SourceMixture::at(std::int64_t sample) const {
  ZS_CHECK(sample >= 0, "sample {}", sample);
  Place place = cycle_[static_cast<std::size_t>(sample % kCycle)];
  place.sample += sample / kCycle * counts_[place.source];
  return place;
}

}  // namespace zs
