#include "model/datasets/sampler.h"

#include "model/data/permutation.h"
#include "runtime/base/usage_error.h"

namespace zs {

SampleRange samples_of_rank(DataShare share, std::int64_t step, std::int64_t batch) {
  if (step < 0 || batch <= 0 || batch % share.count != 0)
    throw UsageError(fmt::format("step {} of {} samples over {} ranks", step, batch, share.count),
                     "steps are counted from 0, and samples are a multiple of the ranks");
  const std::int64_t samples = batch / share.count;
  return {step * batch + share.index * samples, samples};
}

Sampler::Sampler(std::int64_t size, std::optional<std::uint64_t> seed) : size_(size), seed_(seed) {
  if (size < 1) throw UsageError(fmt::format("a Sampler of {} items", size), "give it one at least");
}

std::int64_t Sampler::item(std::int64_t sample) const {
  if (sample < 0) throw UsageError(fmt::format("sample {}", sample), "samples are counted from 0");
  const std::int64_t position = sample % size_;
  if (!seed_) return position;
  const std::uint64_t key = mix64(*seed_ ^ hash_name("row order")) + static_cast<std::uint64_t>(sample / size_);
  return static_cast<std::int64_t>(
      Permutation(static_cast<std::uint64_t>(size_), key)(static_cast<std::uint64_t>(position)));
}

std::vector<std::int64_t> Sampler::batch(DataShare share, std::int64_t step, std::int64_t batch) const {
  const SampleRange range = samples_of_rank(share, step, batch);
  std::vector<std::int64_t> items;
  for (std::int64_t i = 0; i < range.count; ++i) items.push_back(item(range.first + i));
  return items;
}

}  // namespace zs
