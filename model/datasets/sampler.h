#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/shard/placement/rank_grid.h"

namespace zs {

/// Samples that follow each other.
struct SampleRange {
  std::int64_t first = 0, count = 0;
};
/// The samples of one share of the data in step `step` >= 0, of `batch` in all shares together, which are dealt out in
/// equal parts, share after share. UsageError where they cannot be.
SampleRange samples_of_rank(DataShare share, std::int64_t step, std::int64_t batch);

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
  std::vector<std::int64_t> batch(DataShare share, std::int64_t step, std::int64_t batch) const;

 private:
  std::int64_t size_;
  std::optional<std::uint64_t> seed_;
};

}  // namespace zs
