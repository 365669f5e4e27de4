#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/data/corpus.h"
#include "model/tokenizer/tokenizer.h"

namespace zs {

/// A part of a corpus as samples of T inputs and T targets: floor((n - 1) / T) windows of T + 1 tokens, T apart.
///
/// Sample s belongs to epoch s / windows(). With a seed every epoch draws all windows once, in an order that is a
/// function of (seed, epoch) alone; so sample s is the same window for any number of ranks and after any restart.
/// Without a seed windows come in file order. Shares the corpus; immutable, any thread may fill.
class SampleSource {
 public:
  /// Tokens [first, first + count) of `corpus`; at least sequence + 1 of them.
  SampleSource(std::shared_ptr<const Corpus> corpus, std::int64_t first, std::int64_t count, std::int64_t sequence,
               std::optional<std::uint64_t> seed);

  std::int64_t tokens() const { return count_; }
  /// Its first token's place in the corpus.
  std::int64_t first() const { return first_; }
  std::int64_t sequence() const { return sequence_; }
  std::int64_t windows() const { return (count_ - 1) / sequence_; }
  /// The window that sample `sample` >= 0 is.
  std::int64_t window_of(std::int64_t sample) const;
  /// Samples [first_sample, first_sample + count): inputs and targets (count, T), targets one token later.
  void fill(std::int64_t first_sample, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const;
  /// Reads these samples, so that what is wrong with them is an Error now and not when they are used.
  void check(std::int64_t first_sample, std::int64_t count) const;
  /// Of its tokens: digest_of.
  std::string digest() const;
  const Corpus& corpus() const { return *corpus_; }
  std::shared_ptr<const Corpus> shared_corpus() const { return corpus_; }

 private:
  void read_window(std::int64_t sample, std::vector<std::int32_t>& window) const;

  std::shared_ptr<const Corpus> corpus_;
  std::int64_t first_, count_, sequence_;
  std::optional<std::uint64_t> seed_;
};

/// What to train on. Patterns are files, globs and folders, looked up in `folders` (see find_data_files).
struct DatasetOptions {
  DataKind kind = DataKind::text;
  std::int64_t token_bytes = 2;                ///< of ids in files without a header
  std::vector<std::string> train, validation;  ///< validation empty: the end of train
  double validation_fraction = 0.1;
  std::vector<std::string> folders;
  std::int64_t sequence = 0, vocab = 0;
  std::uint64_t seed = 0;
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  ///< of text: its ids are the tokens, not bytes
  int threads = 1;                                       ///< that tokenize
};

struct Dataset {
  SampleSource train;
  std::optional<SampleSource> validation;  ///< in file order; none when the fraction is 0 and no files are named
  std::vector<std::string> files;          ///< of both, as found
};

/// What `patterns` stand for, as one corpus of that kind. Throws Error(dataset), and Error(config) where the vocabulary
/// has no room for the tokenizer's ids.
std::shared_ptr<const Corpus> open_corpus(const DatasetOptions& options, const std::vector<std::string>& patterns);

/// Opens all files and looks at what they are. Their ids are checked when they are read, or by `verify`. Throws
/// Error(dataset).
Dataset open_dataset(const DatasetOptions& options);

/// What a checkpoint says of its data, so that a run that goes on can say what has become another.
struct DataFacts {
  std::int64_t train_tokens = 0;
  std::string train_digest, validation_digest;  ///< "none" without validation data
  std::string train_files;                      ///< describe_names
};
/// Reads as much of the data as digest_of does.
DataFacts facts_of(const Dataset& data);

/// Reads this rank's share of all tokens, whatever part of the data is used: each is within the vocabulary, or an
/// Error(dataset) names it. `progress`: called now and then with the part of the share that is done, from 0 to 1; may
/// throw.
void verify(const Dataset& data, int rank, int ranks, const std::function<void(double)>& progress);

}  // namespace zs
