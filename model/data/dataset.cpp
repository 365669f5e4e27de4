#include "model/data/dataset.h"

#include <algorithm>
#include <cmath>

#include "model/data/data_digest.h"
#include "model/data/data_files.h"
#include "model/data/permutation.h"
#include "model/tokenizer/document_encoder.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

template <class Id>
void append(std::vector<std::byte>& bytes, const std::vector<std::int32_t>& ids) {
  const std::vector<Id> narrow(ids.begin(), ids.end());
  const auto* const begin = reinterpret_cast<const std::byte*>(narrow.data());
  bytes.insert(bytes.end(), begin, begin + narrow.size() * sizeof(Id));
}

/// What the tokenizer makes of texts, in memory.
std::shared_ptr<const Corpus> tokenize(const DatasetOptions& options, const std::vector<std::string>& files) {
  constexpr std::int64_t kNarrowVocab = 65536;
  const std::int64_t needed = options.tokenizer->vocab_size();
  if (needed > options.vocab)
    throw Error(ExitCode::config,
                fmt::format("the tokenizer has ids up to {}, and model.vocab is {}", needed - 1, options.vocab),
                "data.tokenizer", fmt::format("set model.vocab to {} or more", needed));
  const bool is_narrow = needed <= kNarrowVocab;
  std::vector<std::byte> bytes;
  encode_documents(*options.tokenizer, files, options.threads, [&](const std::vector<std::int32_t>& ids) {
    is_narrow ? append<std::uint16_t>(bytes, ids) : append<std::int32_t>(bytes, ids);
  });
  const DataFormat format{.kind = DataKind::tokens, .vocab = options.vocab, .token_bytes = is_narrow ? 2 : 4};
  return std::make_shared<const Corpus>(format, files, std::move(bytes));
}

std::string where_of(const Corpus& corpus) {
  const std::size_t count = corpus.files().size();
  return count == 0 ? "no files" : corpus.files().front() + (count == 1 ? "" : fmt::format(" and {} more", count - 1));
}

SampleSource make_source(const std::shared_ptr<const Corpus>& corpus, std::int64_t first, std::int64_t count,
                         const char* part, const DatasetOptions& options, std::optional<std::uint64_t> seed) {
  if (count < options.sequence + 1)
    throw Error(ExitCode::dataset,
                fmt::format("the {} data has {} tokens, one sample needs {}", part, count, options.sequence + 1),
                where_of(*corpus), "add data, shorten train.sequence, or change data.validation_fraction");
  return SampleSource(corpus, first, count, options.sequence, seed);
}

}  // namespace

SampleSource::SampleSource(std::shared_ptr<const Corpus> corpus, std::int64_t first, std::int64_t count,
                           std::int64_t sequence, std::optional<std::uint64_t> seed)
    : corpus_(std::move(corpus)), first_(first), count_(count), sequence_(sequence), seed_(seed) {
  ZS_CHECK(sequence >= 1 && count > sequence && first >= 0 && count <= corpus_->tokens() - first,
           "samples of {} from tokens [{}, +{}) of {}", sequence, first, count, corpus_->tokens());
}

std::int64_t SampleSource::window_of(std::int64_t sample) const {
  ZS_CHECK(sample >= 0, "sample {}", sample);
  const std::int64_t position = sample % windows();
  if (!seed_) return position;
  const std::uint64_t epoch = static_cast<std::uint64_t>(sample / windows());
  const std::uint64_t key = mix64(*seed_ ^ hash_name("data order")) + epoch;
  return static_cast<std::int64_t>(
      Permutation(static_cast<std::uint64_t>(windows()), key)(static_cast<std::uint64_t>(position)));
}

void SampleSource::read_window(std::int64_t sample, std::vector<std::int32_t>& window) const {
  window.resize(static_cast<std::size_t>(sequence_ + 1));
  corpus_->read(first_ + window_of(sample) * sequence_, sequence_ + 1, window.data());
}

void SampleSource::fill(std::int64_t first_sample, std::int64_t count, std::int32_t* inputs,
                        std::int32_t* targets) const {
  std::vector<std::int32_t> window;
  for (std::int64_t i = 0; i < count; ++i) {
    read_window(first_sample + i, window);
    std::copy(window.begin(), window.end() - 1, inputs + i * sequence_);
    std::copy(window.begin() + 1, window.end(), targets + i * sequence_);
  }
}

void SampleSource::check(std::int64_t first_sample, std::int64_t count) const {
  std::vector<std::int32_t> window;
  for (std::int64_t i = 0; i < count; ++i) read_window(first_sample + i, window);
}

std::string SampleSource::digest() const { return digest_of(*corpus_, first_, count_); }

std::shared_ptr<const Corpus> open_corpus(const DatasetOptions& options, const std::vector<std::string>& patterns) {
  const std::string suffix = options.kind == DataKind::tokens ? ".bin" : "";
  const std::vector<std::string> files = find_data_files(patterns, options.folders, suffix);
  if (options.kind == DataKind::text && options.tokenizer) return tokenize(options, files);
  const DataFormat format{.kind = options.kind, .vocab = options.vocab, .token_bytes = options.token_bytes};
  return std::make_shared<const Corpus>(format, files);
}

Dataset open_dataset(const DatasetOptions& options) {
  ZS_CHECK(options.sequence >= 1, "sequence of {}", options.sequence);
  const auto corpus = open_corpus(options, options.train);
  std::vector<std::string> files = corpus->files();
  std::int64_t train_tokens = corpus->tokens();
  std::optional<SampleSource> validation;
  if (!options.validation.empty()) {
    const auto other = open_corpus(options, options.validation);
    files.insert(files.end(), other->files().begin(), other->files().end());
    validation = make_source(other, 0, other->tokens(), "validation", options, std::nullopt);
  } else if (options.validation_fraction > 0) {
    train_tokens -=
        static_cast<std::int64_t>(std::floor(static_cast<double>(corpus->tokens()) * options.validation_fraction));
  }
  SampleSource train = make_source(corpus, 0, train_tokens, "training", options, options.seed);
  if (train_tokens < corpus->tokens() || (options.validation.empty() && options.validation_fraction > 0))
    validation =
        make_source(corpus, train_tokens, corpus->tokens() - train_tokens, "validation", options, std::nullopt);
  return {std::move(train), std::move(validation), std::move(files)};
}

DataFacts facts_of(const Dataset& data) {
  return {.train_tokens = data.train.tokens(),
          .train_digest = data.train.digest(),
          .validation_digest = data.validation ? data.validation->digest() : "none",
          .train_files = describe_names(data.train.corpus().files())};
}

void verify(const Dataset& data, int rank, int ranks, const std::function<void(double)>& progress) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 20;
  std::vector<const Corpus*> corpora{&data.train.corpus()};
  if (data.validation && &data.validation->corpus() != corpora.front()) corpora.push_back(&data.validation->corpus());
  std::int64_t all = 0, done = 0;
  for (const Corpus* corpus : corpora) all += corpus->tokens();
  std::vector<std::int32_t> chunk(kChunk);
  for (const Corpus* corpus : corpora) {
    const std::int64_t chunks = (corpus->tokens() + kChunk - 1) / kChunk;
    const std::int64_t first = chunks * rank / ranks * kChunk,
                       last = std::min(chunks * (rank + 1) / ranks * kChunk, corpus->tokens());
    for (std::int64_t at = first; at < last; at += kChunk) {
      progress(std::min(1.0, static_cast<double>(done) * ranks / static_cast<double>(all)));
      const std::int64_t here = std::min(kChunk, last - at);
      corpus->read(at, here, chunk.data());
      done += here;
    }
  }
}

}  // namespace zs
