#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/data/file_format.h"
#include "model/data/text_documents.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/shard/placement/rank_grid.h"
#include "runtime/tensor/documents.h"
#include "runtime/tensor/tensor.h"

namespace zs {

class SampleSource;

/// Options of TokenDataset: its files, and what is made of them. The names are those of the trainer's keys
/// (docs/configuration.md).
struct TokenDatasetOptions {
  std::int64_t sequence = 0;               ///< tokens of a sample; to be given
  std::optional<std::uint64_t> seed = {};  ///< seed of the order of an epoch; none: as in the files
  DataKind kind = DataKind::text;          ///< text, or ids that another program made
  std::int64_t vocab = 0;                  ///< ids are below it; 0: the tokenizer's, or of bytes 256. Of ids: give it
  std::int64_t token_bytes = 2;            ///< bytes of an id in files without a header: 2 or 4
  /// Tokenizer of text (open_tokenizer); null: each byte is a token
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;
  DocumentOptions documents = {};  ///< documents in text; by default all is one
  int threads = 1;                 ///< threads that tokenize
};

/// Samples of T tokens each, and for each token the one that follows.
struct TokenBatch {
  Tensor inputs, targets;  ///< (samples, T) i32; kIgnoredTarget where nothing follows that counts
  Documents documents;  ///< documents within samples: tokens of one see each other, for attention, positions and losses
};

/// Text or token ids as samples for language models. Without documents a sample is a window of T + 1 tokens of all
/// files one after the other, T apart; with them it is a sequence that whole documents are packed into (docs/data.md).
/// Sample s belongs to epoch s / size(). With a seed every epoch has all samples once, in an order that follows from
/// seed and epoch alone: sample s is the same at any number of ranks, and after a restart. Ids and bytes are read when
/// they are asked for; what a tokenizer makes, and documents, are held in memory. Immutable: any thread may read.
class TokenDataset {
 public:
  /// `files`: files, globs and folders. UsageError where the options do not go together; Error(dataset), which names
  /// the file, where one cannot be read, is not what the options say, or there are too few tokens for a sample.
  TokenDataset(const std::vector<std::string>& files, const TokenDatasetOptions& options);

  /// Samples of an epoch, and all tokens.
  std::int64_t size() const;
  std::int64_t tokens() const;
  /// One more than the largest id that there may be: what a model's embedding must hold.
  std::int64_t vocab() const { return options_.vocab; }

  /// Samples [first, first + count). Error(dataset) where an id is not below vocab().
  TokenBatch read(Context& context, std::int64_t first, std::int64_t count) const;
  /// samples_of_rank() of this share: that of the world, or ShardedRuntime::data_share().
  TokenBatch batch(Context& context, DataShare share, std::int64_t step, std::int64_t batch) const;

 private:
  TokenDatasetOptions options_;
  std::shared_ptr<const SampleSource> source_;
};

}  // namespace zs
