#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/data/corpus.h"

namespace zs {

/// A part of a corpus as samples of T inputs and T targets: floor((n - 1) / T) windows of T + 1 tokens, T apart.
///
/// Sample s belongs to epoch s / windows(). With a seed every epoch draws all windows once, in an order that is a function of
/// (seed, epoch) alone; so sample s is the same window for any number of ranks and after any restart. Without a seed
/// windows come in file order. Shares the corpus; immutable, any thread may fill.
class SampleSource {
 public:
  /// Tokens [first, first + count) of `corpus`; at least sequence + 1 of them.
  SampleSource(std::shared_ptr<const Corpus> corpus, std::int64_t first, std::int64_t count, std::int64_t sequence,
               std::optional<std::uint64_t> seed);

  std::int64_t tokens() const { return count_; }
  std::int64_t sequence() const { return sequence_; }
  std::int64_t windows() const { return (count_ - 1) / sequence_; }
  /// The window that sample `sample` >= 0 is.
  std::int64_t window_of(std::int64_t sample) const;
  /// Samples [first_sample, first_sample + count): inputs and targets (count, T), targets one token later.
  void fill(std::int64_t first_sample, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const;

 private:
  std::shared_ptr<const Corpus> corpus_;
  std::int64_t first_, count_, sequence_;
  std::optional<std::uint64_t> seed_;
};

/// What to train on. Patterns are files, globs and folders, looked up in `folders` (see find_data_files).
struct DatasetOptions {
  DataKind kind = DataKind::text;
  std::vector<std::string> train, validation;  ///< validation empty: the end of train
  double validation_fraction = 0.1;
  std::vector<std::string> folders;
  std::int64_t sequence = 0, vocab = 0;
  std::uint64_t seed = 0;
};

struct Dataset {
  SampleSource train;
  std::optional<SampleSource> validation;  ///< in file order; none when the fraction is 0 and no files are named
  std::vector<std::string> files;          ///< of both, as found
};

/// Opens and checks all files. Throws Error(dataset) with file and token index.
Dataset open_dataset(const DatasetOptions& options);

}  // namespace zs
