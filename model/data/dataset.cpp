#include "model/data/dataset.h"

#include <algorithm>
#include <cmath>

#include "model/data/data_files.h"
#include "model/data/permutation.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

std::shared_ptr<const Corpus> open_corpus(const DatasetOptions& options, const std::vector<std::string>& patterns) {
  const std::string suffix = options.kind == DataKind::tokens ? ".bin" : "";
  return std::make_shared<const Corpus>(options.kind, find_data_files(patterns, options.folders, suffix), options.vocab);
}

std::string where_of(const Corpus& corpus) {
  const std::size_t count = corpus.files().size();
  return count == 0 ? "no files" : corpus.files().front() + (count == 1 ? "" : fmt::format(" and {} more", count - 1));
}

SampleSource make_source(const std::shared_ptr<const Corpus>& corpus, std::int64_t first, std::int64_t count, const char* part,
                         const DatasetOptions& options, std::optional<std::uint64_t> seed) {
  if (count < options.sequence + 1)
    throw Error(ExitCode::dataset, fmt::format("the {} data has {} tokens, one sample needs {}", part, count, options.sequence + 1),
                where_of(*corpus), "add data, shorten train.sequence, or change data.validation_fraction");
  return SampleSource(corpus, first, count, options.sequence, seed);
}

}  // namespace

SampleSource::SampleSource(std::shared_ptr<const Corpus> corpus, std::int64_t first, std::int64_t count, std::int64_t sequence,
                           std::optional<std::uint64_t> seed)
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
  return static_cast<std::int64_t>(Permutation(static_cast<std::uint64_t>(windows()), key)(static_cast<std::uint64_t>(position)));
}

void SampleSource::fill(std::int64_t first_sample, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const {
  std::vector<std::int32_t> window(static_cast<std::size_t>(sequence_ + 1));
  for (std::int64_t i = 0; i < count; ++i) {
    corpus_->read(first_ + window_of(first_sample + i) * sequence_, sequence_ + 1, window.data());
    std::copy(window.begin(), window.end() - 1, inputs + i * sequence_);
    std::copy(window.begin() + 1, window.end(), targets + i * sequence_);
  }
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
    train_tokens -= static_cast<std::int64_t>(std::floor(static_cast<double>(corpus->tokens()) * options.validation_fraction));
  }
  SampleSource train = make_source(corpus, 0, train_tokens, "training", options, options.seed);
  if (train_tokens < corpus->tokens() || (options.validation.empty() && options.validation_fraction > 0))
    validation = make_source(corpus, train_tokens, corpus->tokens() - train_tokens, "validation", options, std::nullopt);
  return {std::move(train), std::move(validation), std::move(files)};
}

}  // namespace zs
