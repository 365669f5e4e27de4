#include "model/data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "model/data/bad_data.h"
#include "model/data/data_digest.h"
#include "model/data/data_files.h"
#include "model/data/document_data.h"
#include "model/data/permutation.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

/// Tokenizes texts, in memory.
std::shared_ptr<const Corpus> tokenize(const DatasetOptions& options, const std::vector<std::string>& files) {
  check_vocab(options);
  const DataFormat format{.kind = DataKind::tokens,
                          .vocab = options.vocab,
                          .token_bytes = token_bytes_for(options.tokenizer->vocab_size())};
  std::vector<std::byte> bytes;
  encode_documents(*options.tokenizer, files, options.threads, options.special,
                   [&](const std::vector<std::int32_t>& ids) {
                     const auto most = std::max_element(ids.begin(), ids.end());
                     if (most != ids.end() && *most >= options.vocab)
                       throw Error(ExitCode::dataset,
                                   fmt::format("the text has token {} ('{}'), and the model has {} embeddings", *most,
                                               options.tokenizer->id_to_token(*most).value_or(""), options.vocab),
                                   where_of(files), "leave that token out, or use a model that has it");
                     append_ids(bytes, ids, format.token_bytes);
                   });
  return std::make_shared<const Corpus>(format, files, std::move(bytes));
}

SampleSource make_source(const std::shared_ptr<const Corpus>& corpus, std::int64_t first, std::int64_t count,
                         const char* part, const DatasetOptions& options, std::optional<std::uint64_t> seed) {
  if (count < options.sequence + 1)
    throw Error(ExitCode::dataset,
                fmt::format("the {} data has {} tokens, one sample needs {}", part, count, options.sequence + 1),
                where_of(corpus->files()), "add data, shorten train.sequence, or change data.validation_fraction");
  return SampleSource(corpus, first, count, options.sequence, seed);
}

/// The last documents of these, so many of all, and at least one; the others are left.
std::vector<Document> take_validation(EncodedDocuments& all, double fraction, DocumentFormat format) {
  std::vector<Document>& documents = all.documents;
  const std::ptrdiff_t whole = format == DocumentFormat::preference ? 2 : 1;  // half of a pair is none
  const auto share = static_cast<std::ptrdiff_t>(std::floor(static_cast<double>(documents.size()) * fraction));
  auto begin = documents.end() - std::max(whole, share / whole * whole);
  while (begin != documents.begin() && std::prev(begin)->goes_on) --begin;  // all parts of a document
  if (begin == documents.begin())
    throw Error(ExitCode::dataset, "one document is not enough to keep some for validation",
                where_of(all.corpus->files()),
                "add documents, name data.validation, or set data.validation_fraction = 0");
  std::vector<Document> last(begin, documents.end());
  documents.erase(begin, documents.end());
  return last;
}

/// Each of `options.train` by itself, in an order of its own, and mixed.
Dataset open_mixed(const DatasetOptions& options) {
  ZS_CHECK(options.weights.size() == options.train.size() && options.validation_fraction == 0,
           "{} weights of {} sources, of which {} is for validation", options.weights.size(), options.train.size(),
           options.validation_fraction);
  std::vector<SampleSource> sources;
  std::optional<SampleSource> validation;
  for (std::size_t i = 0; i < options.train.size(); ++i) {
    DatasetOptions one = options;
    one.train = {options.train[i]};
    one.weights.clear();
    if (i > 0) one.validation.clear();
    one.seed = mix64(options.seed + i);
    Dataset data = open_dataset(one);
    if (data.validation) validation = std::move(data.validation);
    sources.push_back(std::move(data.train));
  }
  SampleSource mixed(std::move(sources), options.weights);
  std::vector<std::string> files = mixed.files();
  if (validation) {
    const std::vector<std::string> others = validation->files();
    files.insert(files.end(), others.begin(), others.end());
  }
  return {std::move(mixed), std::move(validation), std::move(files)};
}

constexpr std::int64_t kPair = 2;

SampleSource packed(std::shared_ptr<const Corpus> corpus, std::vector<Document> documents,
                    const DatasetOptions& options, std::optional<std::uint64_t> seed) {
  const std::int64_t group = options.documents.format == DocumentFormat::preference ? kPair : 0;
  return {std::make_shared<const PackedDocuments>(std::move(corpus), std::move(documents), options.sequence, group),
          options.sequence, seed};
}

Dataset open_packed(const DatasetOptions& options) {
  EncodedDocuments train = encoded_documents(options, options.train);
  std::vector<std::string> files = train.corpus->files();
  std::optional<SampleSource> validation;
  if (!options.validation.empty()) {
    EncodedDocuments other = encoded_documents(options, options.validation);
    files.insert(files.end(), other.corpus->files().begin(), other.corpus->files().end());
    validation = packed(other.corpus, std::move(other.documents), options, std::nullopt);
  } else if (options.validation_fraction > 0) {
    validation = packed(train.corpus, take_validation(train, options.validation_fraction, options.documents.format),
                        options, std::nullopt);
  }
  return {packed(train.corpus, std::move(train.documents), options, options.seed), std::move(validation),
          std::move(files)};
}

}  // namespace

SampleSource::SampleSource(std::shared_ptr<const PackedDocuments> packed, std::int64_t sequence,
                           std::optional<std::uint64_t> seed)
    : corpus_(packed->corpus()),
      packed_(std::move(packed)),
      count_(packed_->tokens()),
      sequence_(sequence),
      windows_(packed_->sequences()),
      documents_(packed_->documents()),
      group_(packed_->group()),
      seed_(seed) {}

SampleSource::SampleSource(std::vector<SampleSource> sources, const std::vector<double>& weights)
    : corpus_(sources.front().corpus_), sequence_(sources.front().sequence_) {
  ZS_CHECK(sources.size() == weights.size(), "{} sources, {} weights", sources.size(), weights.size());
  for (const SampleSource& source : sources) {
    count_ += source.count_;
    windows_ += source.windows_;
    documents_ += source.documents_;
  }
  mixed_ = std::make_shared<const Mixed>(Mixed{std::move(sources), SourceMixture(weights)});
}

SampleSource::SampleSource(std::shared_ptr<const Corpus> corpus, std::int64_t first, std::int64_t count,
                           std::int64_t sequence, std::optional<std::uint64_t> seed)
    : corpus_(std::move(corpus)),
      first_(first),
      count_(count),
      sequence_(sequence),
      windows_((count - 1) / sequence),
      seed_(seed) {
  ZS_CHECK(sequence >= 1 && count > sequence && first >= 0 && count <= corpus_->tokens() - first,
           "samples of {} from tokens [{}, +{}) of {}", sequence, first, count, corpus_->tokens());
}

std::int64_t SampleSource::window_of(std::int64_t sample) const {
  ZS_CHECK(sample >= 0 && !mixed_, "sample {}{}", sample, mixed_ ? " of several sources" : "");
  const std::int64_t position = sample % windows();
  if (!seed_) return position;
  const std::uint64_t epoch = static_cast<std::uint64_t>(sample / windows());
  const std::uint64_t key = mix64(*seed_ ^ hash_name("data order")) + epoch;
  const Permutation order(static_cast<std::uint64_t>(windows() / group_), key);
  return static_cast<std::int64_t>(order(static_cast<std::uint64_t>(position / group_))) * group_ + position % group_;
}

void SampleSource::read_window(std::int64_t sample, std::vector<std::int32_t>& window) const {
  window.resize(static_cast<std::size_t>(sequence_ + 1));
  corpus_->read(first_ + window_of(sample) * sequence_, sequence_ + 1, window.data());
}

void SampleSource::read_one(std::int64_t sample, std::int32_t* inputs, std::int32_t* targets,
                            std::vector<std::int64_t>& lengths) const {
  if (mixed_) {
    const SourceMixture::Place place = mixed_->mixture.at(sample);
    return mixed_->sources[place.source].read_one(place.sample, inputs, targets, lengths);
  }
  if (packed_) return packed_->read(window_of(sample), inputs, targets, lengths);
  std::vector<std::int32_t> window;
  read_window(sample, window);
  std::copy(window.begin(), window.end() - 1, inputs);
  std::copy(window.begin() + 1, window.end(), targets);
}

SampleBatch SampleSource::read(std::int64_t first_sample, std::int64_t count) const {
  SampleBatch batch;
  batch.inputs.resize(static_cast<std::size_t>(count * sequence_));
  batch.targets.resize(batch.inputs.size());
  for (std::int64_t i = 0; i < count; ++i)
    read_one(first_sample + i, batch.inputs.data() + i * sequence_, batch.targets.data() + i * sequence_,
             batch.lengths);
  return batch;
}

std::int64_t SampleSource::targets(std::int64_t first_sample, std::int64_t count) const {
  if (!mixed_ && !packed_) return count * sequence_;
  std::int64_t sum = 0;
  for (std::int64_t i = first_sample; i < first_sample + count; ++i) {
    if (packed_) {
      sum += packed_->targets(window_of(i));
    } else {
      const SourceMixture::Place place = mixed_->mixture.at(i);
      sum += mixed_->sources[place.source].targets(place.sample, 1);
    }
  }
  return sum;
}

bool SampleSource::has_targets() const {
  if (mixed_)
    return std::any_of(mixed_->sources.begin(), mixed_->sources.end(),
                       [](const SampleSource& source) { return source.has_targets(); });
  if (!packed_) return true;
  for (std::int64_t i = 0; i < windows_; ++i)
    if (packed_->targets(i) > 0) return true;
  return false;
}

void SampleSource::check(std::int64_t first_sample, std::int64_t count) const {
  if (packed_) return;  // held in memory, and within the vocabulary
  std::vector<std::int32_t> window;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!mixed_) {
      read_window(first_sample + i, window);
      continue;
    }
    const SourceMixture::Place place = mixed_->mixture.at(first_sample + i);
    mixed_->sources[place.source].check(place.sample, 1);
  }
}

std::string SampleSource::digest() const {
  if (packed_) return packed_->digest();
  if (!mixed_) return digest_of(*corpus_, first_, count_);
  std::string all;
  for (const SampleSource& source : mixed_->sources) all += source.digest() + '+';
  return fmt::format("{:016x}", XXH3_64bits(all.data(), all.size()));
}

std::vector<std::string> SampleSource::files() const {
  std::vector<std::string> all;
  for (const Corpus* corpus : corpora()) all.insert(all.end(), corpus->files().begin(), corpus->files().end());
  return all;
}

std::vector<const Corpus*> SampleSource::corpora() const {
  if (!mixed_) return {corpus_.get()};
  std::vector<const Corpus*> all;
  for (const SampleSource& source : mixed_->sources) all.push_back(source.corpus_.get());
  return all;
}

std::string folder_suffix(const DatasetOptions& options) {
  if (options.kind == DataKind::tokens) return ".bin";
  const DocumentFormat format = options.documents.format;
  const bool are_lines_of_json =
      format == DocumentFormat::jsonl || format == DocumentFormat::chat || format == DocumentFormat::preference;
  return are_lines_of_json ? ".jsonl" : "";
}

std::shared_ptr<const Corpus> open_corpus(const DatasetOptions& options, const std::vector<std::string>& patterns) {
  const std::vector<std::string> files = find_data_files(patterns, options.folders, folder_suffix(options));
  if (options.kind == DataKind::text && options.tokenizer) return tokenize(options, files);
  const DataFormat format{.kind = options.kind, .vocab = options.vocab, .token_bytes = options.token_bytes};
  return std::make_shared<const Corpus>(format, files);
}

SampleSource open_documents(const DatasetOptions& options, const std::vector<std::string>& patterns,
                            std::optional<std::uint64_t> seed) {
  EncodedDocuments found = encoded_documents(options, patterns);
  return packed(found.corpus, std::move(found.documents), options, seed);
}

Dataset open_dataset(const DatasetOptions& options) {
  if (options.sequence == 0 && options.documents.format != DocumentFormat::stream) {
    DatasetOptions own = options;
    own.sequence = sequence_of_documents(options);
    return open_dataset(own);
  }
  ZS_CHECK(options.sequence >= 1, "sequence of {}", options.sequence);
  if (!options.weights.empty()) return open_mixed(options);
  if (options.documents.format != DocumentFormat::stream) return open_packed(options);
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

void check_targets(const Dataset& data, std::int64_t validated) {
  const auto refuse = [](const char* use, const SampleSource& source) {
    throw bad_data(fmt::format("no token that is {} is a target", use), source.files().front(), kNoTargets);
  };
  if (!data.train.has_targets()) refuse("trained on", data.train);
  const std::int64_t samples = data.validation ? std::min(data.validation->windows(), validated) : 0;
  if (samples > 0 && data.validation->targets(0, samples) == 0) refuse("validated by", *data.validation);
}

DataFacts facts_of(const Dataset& data) {
  return {.train_tokens = data.train.tokens(),
          .train_digest = data.train.digest(),
          .validation_digest = data.validation ? data.validation->digest() : "none",
          .train_files = describe_names(data.train.files())};
}

void verify(const Dataset& data, int rank, int ranks, const std::function<void(double)>& progress) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 20;
  std::vector<const Corpus*> corpora = data.train.corpora();
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
