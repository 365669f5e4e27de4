#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/data/corpus.h"
#include "model/data/packed_documents.h"
#include "model/data/sample_batch.h"
#include "model/data/source_mixture.h"
#include "model/tokenizer/tokenizer.h"

namespace zs {

/// Samples of T inputs and T targets: a part of a corpus as floor((n - 1) / T) windows of T + 1 tokens, T apart; or
/// sequences that are packed with documents, which here are windows, too; or a mixture of several sources.
///
/// Sample s belongs to epoch s / windows(). With a seed every epoch draws all windows once, in an order that is a
/// function of (seed, epoch) alone; so sample s is the same window for any number of ranks and after any restart.
/// Without a seed windows come in file order. Shares the corpus; immutable, any thread may read.
class SampleSource {
 public:
  /// Tokens [first, first + count) of `corpus`; at least sequence + 1 of them.
  SampleSource(std::shared_ptr<const Corpus> corpus, std::int64_t first, std::int64_t count, std::int64_t sequence,
               std::optional<std::uint64_t> seed);
  SampleSource(std::shared_ptr<const PackedDocuments> packed, std::int64_t sequence, std::optional<std::uint64_t> seed);
  /// Mixes sources of one sequence length, each in its own order: SourceMixture says which sample is whose.
  SampleSource(std::vector<SampleSource> sources, const std::vector<double>& weights);

  std::int64_t tokens() const { return count_; }
  /// Place in the corpus of the source's first token.
  std::int64_t first() const { return first_; }
  std::int64_t sequence() const { return sequence_; }
  /// Number of windows of all sources; and the documents that they are packed with, 0 where they are not.
  std::int64_t windows() const { return windows_; }
  std::int64_t documents() const { return documents_; }
  /// The window that sample `sample` >= 0 is; not of a mixture.
  std::int64_t window_of(std::int64_t sample) const;
  /// Samples [first_sample, first_sample + count), targets one token later.
  SampleBatch read(std::int64_t first_sample, std::int64_t count) const;
  /// Count of the targets that count in these samples; no data is read.
  std::int64_t targets(std::int64_t first_sample, std::int64_t count) const;
  /// True if any of its windows has one.
  bool has_targets() const;
  /// Reads these samples, so that what is wrong with them is an Error now and not when they are used.
  void check(std::int64_t first_sample, std::int64_t count) const;
  /// Digest of the tokens: digest_of; for documents, PackedDocuments'.
  std::string digest() const;
  /// Corpus of the first source.
  const Corpus& corpus() const { return *corpus_; }
  std::shared_ptr<const Corpus> shared_corpus() const { return corpus_; }
  /// Corpora and, below, files of all sources.
  std::vector<const Corpus*> corpora() const;
  std::vector<std::string> files() const;

 private:
  struct Mixed {
    std::vector<SampleSource> sources;
    SourceMixture mixture;
  };
  void read_window(std::int64_t sample, std::vector<std::int32_t>& window) const;
  void read_one(std::int64_t sample, std::int32_t* inputs, std::int32_t* targets,
                std::vector<std::int64_t>& lengths) const;

  std::shared_ptr<const Corpus> corpus_;
  std::shared_ptr<const PackedDocuments> packed_;  // null: windows
  std::shared_ptr<const Mixed> mixed_;             // null: one source
  std::int64_t first_ = 0, count_ = 0, sequence_ = 0, windows_ = 0, documents_ = 0, group_ = 1;
  std::optional<std::uint64_t> seed_;
};

/// Options of the data to train on. Patterns are files, globs and folders, looked up in `folders` (see
/// find_data_files).
struct DatasetOptions {
  DataKind kind = DataKind::text;
  std::int64_t token_bytes = 2;                          ///< bytes of an id in files without a header
  std::vector<std::string> train = {}, validation = {};  ///< validation empty: the end of train
  std::vector<double> weights = {};  ///< weight of each of `train`, which then are sources of their own
  double validation_fraction = 0.1;  ///< 0 with weights
  std::vector<std::string> folders = {};
  std::int64_t sequence = 0, vocab = 0;  ///< sequence 0, of documents: as the longest one, at most `most_sequence`
  std::int64_t most_sequence = 0;
  bool has_fixed_vocab = false;  ///< the tokenizer may have more ids than `vocab`, as long as no text has one
  std::uint64_t seed = 0;
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  ///< tokenizer of text: its ids are the tokens, not bytes
  int threads = 1;                                       ///< threads that tokenize
  DocumentOptions documents = {};                        ///< documents in text
  SpecialTokens special = SpecialTokens::automatic;      ///< special tokens around a text
  std::shared_ptr<const ChatTemplate> chat = nullptr;    ///< renders documents that are chats
  TrainOn train_on = TrainOn::assistant;                 ///< turns of a chat that are targets
};

struct Dataset {
  SampleSource train;
  std::optional<SampleSource> validation;  ///< in file order; none when the fraction is 0 and no files are named
  std::vector<std::string> files;          ///< files of both, as found
};

/// Suffix of the names of the files that a folder stands for.
std::string folder_suffix(const DatasetOptions& options);

/// Opens the files that `patterns` stand for, as one corpus of that kind, whatever documents are in it. Throws
/// Error(dataset), and Error(config) where the vocabulary has no room for the tokenizer's ids.
std::shared_ptr<const Corpus> open_corpus(const DatasetOptions& options, const std::vector<std::string>& patterns);

/// The documents of these files, packed into sequences. Throws what open_dataset throws.
SampleSource open_documents(const DatasetOptions& options, const std::vector<std::string>& patterns,
                            std::optional<std::uint64_t> seed);

/// Opens all files and looks at what they are. Their ids are checked when they are read, or by `verify`. Throws
/// Error(dataset).
Dataset open_dataset(const DatasetOptions& options);

/// Error(dataset) where no token is a target of those that are trained on, or of the first `validated` samples of the
/// validation data; 0: nothing is validated.
void check_targets(const Dataset& data, std::int64_t validated);

/// Shows document `number`, from 1 on, of the training data, in the order of the files, as it is trained on: its tokens
/// with what they stand for, and which of them are targets; of a stream its sequences. `has_colours`: for a terminal,
/// with its text first, targets in colour. Throws what open_dataset throws, and Error(usage) where there are fewer.
std::string show_document(const DatasetOptions& options, std::int64_t number, bool has_colours = false);

/// Facts that a checkpoint holds about its data, so that a run that goes on can say what has become another.
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
