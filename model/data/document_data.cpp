#include "model/data/document_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/data/data_files.h"
#include "model/data/utf8.h"
#include "runtime/base/check.h"
#include "runtime/base/standard_streams.h"
#include "runtime/tensor/reduction.h"

namespace zs {
namespace {

EncodeOptions encode_options(const DatasetOptions& options) {
  return {.tokenizer = options.tokenizer.get(),
          .sequence = options.sequence,
          .vocab = options.vocab,
          .overlong = options.documents.overlong,
          .special = options.special,
          .threads = options.threads,
          .chat = options.chat.get(),
          .train_on = options.train_on};
}

/// Tokens of a document, and which of them are targets.
struct ShownTokens {
  std::string title;
  std::vector<std::int32_t> ids;
  std::vector<TokenSpan> trained;

  bool is_target(std::int64_t i) const {
    return i > 0 && std::any_of(trained.begin(), trained.end(),
                                [&](const TokenSpan& span) { return i >= span.begin && i < span.end; });
  }
};

/// A document's text, its targets in colour.
std::string coloured_text(const ShownTokens& tokens, const Tokenizer& tokenizer) {
  std::string text;
  for (std::int64_t i = 0; i < std::ssize(tokens.ids);) {
    const bool is_target = tokens.is_target(i);
    std::string run;
    for (; i < std::ssize(tokens.ids) && tokens.is_target(i) == is_target; ++i)
      run += tokenizer.surface(tokens.ids[static_cast<std::size_t>(i)]);
    text += is_target ? fmt::format("{}{}{}", kGreen, printable(run), kPlainColour) : printable(run);
  }
  return text + (text.ends_with('\n') ? "\n" : "\n\n");
}

std::string shown_lines(const ShownTokens& tokens, const Tokenizer* tokenizer, DataKind kind, bool has_colours) {
  const std::int64_t count = std::ssize(tokens.ids);
  std::int64_t targets = 0;
  for (std::int64_t i = 0; i < count; ++i) targets += tokens.is_target(i) ? 1 : 0;
  std::string text = fmt::format("{}: {} tokens, {} of them targets\n", tokens.title, count, targets);
  if (has_colours && tokenizer != nullptr) text += coloured_text(tokens, *tokenizer);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t id = tokens.ids[static_cast<std::size_t>(i)];
    std::string token;
    if (tokenizer != nullptr) {
      token = tokenizer->id_to_token(id).value_or("");
    } else if (kind == DataKind::text) {
      token = static_cast<char>(id);
    }
    const bool is_target = tokens.is_target(i), has_colour = is_target && has_colours;
    text += fmt::format("{}{:>6} {:>7}  {:6}  {}{}\n", has_colour ? kGreen : "", i, id, is_target ? "target" : "-",
                        nlohmann::json(token).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                        has_colour ? kPlainColour : "");
  }
  return text;
}

Error too_few(std::int64_t number, std::int64_t count, const char* what) {
  return {ExitCode::usage, fmt::format("there is no {} {}: the training data has {}", what, number, count),
          "document N", fmt::format("name one from 1 to {}", count)};
}

}  // namespace

void check_vocab(const DatasetOptions& options) {
  if (!options.tokenizer || options.has_fixed_vocab) return;
  const std::int64_t needed = options.tokenizer->vocab_size();
  if (needed > options.vocab)
    throw Error(ExitCode::config,
                fmt::format("the tokenizer has ids up to {}, and model.vocab is {}", needed - 1, options.vocab),
                "data.tokenizer", fmt::format("set model.vocab to {} or more", needed));
}

std::string where_of(const std::vector<std::string>& files) {
  const std::size_t count = files.size();
  return count == 0 ? "no files" : files.front() + (count == 1 ? "" : fmt::format(" and {} more", count - 1));
}

EncodedDocuments encoded_documents(const DatasetOptions& options, const std::vector<std::string>& patterns) {
  check_vocab(options);
  const std::vector<std::string> files = find_data_files(patterns, options.folders, folder_suffix(options));
  EncodedDocuments found = encode_texts(read_documents(files, options.documents), files, encode_options(options));
  if (found.documents.empty())
    throw Error(ExitCode::dataset, "the data has no documents", where_of(found.corpus->files()),
                "name files that have some");
  return found;
}

std::int64_t sequence_of_documents(const DatasetOptions& options) {
  check_vocab(options);
  std::vector<std::string> patterns = options.train;
  patterns.insert(patterns.end(), options.validation.begin(), options.validation.end());
  const std::vector<std::string> files = find_data_files(patterns, options.folders, folder_suffix(options));
  return std::clamp<std::int64_t>(longest_of(read_documents(files, options.documents), encode_options(options)), 1,
                                  options.most_sequence);
}

std::string show_document(const DatasetOptions& options, std::int64_t number, bool has_colours) {
  if (options.documents.format == DocumentFormat::stream) {
    const auto corpus = open_corpus(options, options.train);
    const std::int64_t count = (corpus->tokens() - 1) / options.sequence;
    if (number > count) throw too_few(number, count, "sequence");
    ShownTokens tokens{fmt::format("sequence {} of {}", number, count), {}, {{0, options.sequence + 1}}};
    tokens.ids.resize(static_cast<std::size_t>(options.sequence + 1));
    corpus->read((number - 1) * options.sequence, options.sequence + 1, tokens.ids.data());
    return shown_lines(tokens, options.tokenizer.get(), options.kind, has_colours);
  }
  DatasetOptions own = options;
  if (own.sequence == 0) own.sequence = sequence_of_documents(options);
  const EncodedDocuments all = encoded_documents(own, options.train);
  const std::int64_t count = std::ssize(all.documents);
  if (number > count) throw too_few(number, count, "document");
  const auto index = static_cast<std::size_t>(number - 1);
  const Document& document = all.documents[index];
  ShownTokens tokens{fmt::format("document {} of {}, {}", number, count, all.where[index]), {}, document.trained};
  if (document.goes_on) tokens.trained.push_back({document.length, document.length + 1});
  tokens.ids.resize(static_cast<std::size_t>(document.length + (document.goes_on ? 1 : 0)));
  all.corpus->read(document.first, std::ssize(tokens.ids), tokens.ids.data());
  return shown_lines(tokens, options.tokenizer.get(), options.kind, has_colours);
}

}  // namespace zs
