#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/world.h"

namespace zs {

/// Samples that follow each other.
struct SampleRange {
  std::int64_t first = 0, count = 0;
};
/// This rank's part of the samples of step `step` >= 0, of `batch` on all ranks together, which are dealt out in equal
/// parts, rank after rank. UsageError where they cannot be.
SampleRange samples_of_rank(const World& world, std::int64_t step, std::int64_t batch);

/// Order in which items come, such as the rows of a file. Sample s belongs to epoch s / size(). With a seed every epoch
/// has each item once, in an order that follows from seed and epoch alone: sample s is the same item at any number of
/// ranks, and after a restart, and nothing is kept of the order. Without a seed items come as they are numbered.
/// Immutable: any thread may ask.
class Sampler {
 public:
  /// UsageError unless size >= 1.
  explicit Sampler(std::int64_t size, std::optional<std::uint64_t> seed = {});

  /// Items, which are the samples of an epoch.
  std::int64_t size() const { return size_; }
  /// Item that sample `sample` >= 0 is.
  std::int64_t item(std::int64_t sample) const;
  /// The items of samples_of_rank().
  std::vector<std::int64_t> batch(const World& world, std::int64_t step, std::int64_t batch) const;

 private:
  std::int64_t size_;
  std::optional<std::uint64_t> seed_;
};

}  // namespace zs
