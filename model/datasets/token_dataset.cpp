#include "model/datasets/token_dataset.h"

#include <array>
#include <string_view>
#include <utility>

#include "model/data/bad_data.h"
#include "model/data/dataset.h"
#include "model/datasets/sampler.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

constexpr std::int64_t kBytes = 256;

TokenDatasetOptions resolved(TokenDatasetOptions options) {
  const bool has_documents = options.documents.format != DocumentFormat::stream;
  if (options.sequence < 1)
    throw UsageError(fmt::format("a TokenDataset of samples of {} tokens", options.sequence),
                     "set TokenDatasetOptions::sequence");
  if (options.kind == DataKind::tokens && (options.tokenizer || has_documents))
    throw UsageError("a TokenDataset of ids that are to be text", "leave tokenizer and documents out, or kind");
  if (options.token_bytes != 2 && options.token_bytes != 4)
    throw UsageError(fmt::format("token_bytes of {}", options.token_bytes), "ids have 2 bytes or 4");
  if (options.threads < 1) throw UsageError(fmt::format("{} threads", options.threads), "one at least tokenizes");
  if (options.vocab == 0 && options.kind == DataKind::text)
    options.vocab = options.tokenizer ? options.tokenizer->vocab_size() : kBytes;
  const std::int64_t fewest = options.kind == DataKind::tokens ? 1
                              : options.tokenizer              ? options.tokenizer->vocab_size()
                                                               : kBytes;
  if (options.vocab < fewest || options.vocab > Corpus::kMostVocab)
    throw UsageError(fmt::format("a TokenDataset whose vocab is {}", options.vocab),
                     fmt::format("set TokenDatasetOptions::vocab from {} to {}", fewest, Corpus::kMostVocab));
  return options;
}

DatasetOptions options_of(const TokenDatasetOptions& options, const std::vector<std::string>& files) {
  return {.kind = options.kind,
          .token_bytes = options.token_bytes,
          .train = files,
          .validation = {},
          .weights = {},
          .validation_fraction = 0,
          .folders = {""},
          .sequence = options.sequence,
          .vocab = options.vocab,
          .seed = options.seed.value_or(0),
          .tokenizer = options.tokenizer,
          .threads = options.threads,
          .documents = options.documents};
}

/// The trainer's keys are options here, by the same names.
Error without_keys(const Error& error) {
  std::string todo = error.what_to_do();
  for (const std::string_view table : std::array<std::string_view, 3>{"data.", "train.", "model."}) {
    for (std::size_t at = todo.find(table); at != std::string::npos; at = todo.find(table, at))
      todo.erase(at, table.size());
  }
  return {error.code(), error.what_happened(), error.where(), todo};
}

SampleSource open(const TokenDatasetOptions& options, const std::vector<std::string>& files) {
  const DatasetOptions all = options_of(options, files);
  if (options.documents.format != DocumentFormat::stream) return open_documents(all, files, options.seed);
  const std::shared_ptr<const Corpus> corpus = open_corpus(all, files);
  if (corpus->tokens() <= options.sequence)
    throw bad_data(fmt::format("there are {} tokens, and one sample needs {}", corpus->tokens(), options.sequence + 1),
                   corpus->files().empty() ? "no files" : corpus->files().front(), "add data, or shorten the sequence");
  return SampleSource(corpus, 0, corpus->tokens(), options.sequence, options.seed);
}

}  // namespace

TokenDataset::TokenDataset(const std::vector<std::string>& files, const TokenDatasetOptions& options)
    : options_(resolved(options)) {
  if (files.empty()) throw UsageError("a TokenDataset of no files", "name files, globs or folders");
  try {
    source_ = std::make_shared<const SampleSource>(open(options_, files));
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw without_keys(error);
  }
}

std::int64_t TokenDataset::size() const { return source_->windows(); }
std::int64_t TokenDataset::tokens() const { return source_->tokens(); }

TokenBatch TokenDataset::read(Context& context, std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0)
    throw UsageError(fmt::format("{} samples from {} on", count, first), "samples are counted from 0");
  const Shape shape{count, options_.sequence};
  try {
    SampleBatch samples = source_->read(first, count);
    return {Tensor::from_host(context, shape, std::move(samples.inputs)),
            Tensor::from_host(context, shape, std::move(samples.targets)),
            samples.lengths.empty() ? Documents() : Documents(std::move(samples.lengths))};
  } catch (const Error& error) {
    throw without_keys(error);
  }
}

TokenBatch TokenDataset::batch(Context& context, DataShare share, std::int64_t step, std::int64_t batch) const {
  const SampleRange range = samples_of_rank(share, step, batch);
  return read(context, range.first, range.count);
}

}  // namespace zs
