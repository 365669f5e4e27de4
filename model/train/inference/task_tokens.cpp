#include "model/train/inference/task_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/data/bad_data.h"
#include "model/train/config/config_dataset.h"

namespace zs {
namespace {

constexpr std::int64_t kMostGenerated = 256;

/// Begin of the white space at the end of a text, which is str.rstrip()'s of Python as far as it is ASCII.
std::size_t end_without_space(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v\x1c\x1d\x1e\x1f";
  const std::size_t last = text.find_last_not_of(kSpace);
  return last == text.npos ? 0 : last + 1;
}

Error named(const Error& error, const TaskLine& line) {
  return {error.code(), error.what_happened(), line.where + (error.where().empty() ? "" : ", " + error.where()),
          error.what_to_do()};
}

}  // namespace

TaskTokens::TaskTokens(const Config& config, const Tokenizer* tokenizer)
    : vocab_(config.model.vocab),
      sequence_(config.train.sequence),
      has_special_tokens_(special_tokens(config) != SpecialTokens::none),
      is_always_special_(special_tokens(config) == SpecialTokens::always),
      tokenizer_(tokenizer),
      encoder_(tokenizer != nullptr ? tokenizer->make_encoder() : nullptr) {
  if (tokenizer == nullptr && config.data.kind != "text")
    throw Error(ExitCode::config, "there is no tokenizer for the tasks", "data.tokenizer",
                "name one with --set data.tokenizer=FOLDER");
}

std::vector<std::int32_t> TaskTokens::encode(std::string_view text, bool has_special) const {
  std::vector<std::int32_t> ids;
  if (tokenizer_ == nullptr) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  encoder_->encode(text, false, ids);
  const std::vector<std::int32_t>& before = tokenizer_->frame().before;
  if (!has_special || !has_special_tokens_) return ids;
  const bool begins_so = std::search(ids.begin(), ids.end(), before.begin(), before.end()) == ids.begin();
  if (is_always_special_ || !begins_so) ids.insert(ids.begin(), before.begin(), before.end());
  return ids;
}

std::int32_t TaskTokens::prefix() const {
  if (tokenizer_ == nullptr) return '\n';
  const auto begin = tokenizer_->begin_of_text();
  return begin ? *begin : tokenizer_->end_of_text().value_or(0);
}

void TaskTokens::check(const std::vector<std::int32_t>& tokens, const TaskLine& line) const {
  const std::int64_t most = tokens.empty() ? 0 : *std::max_element(tokens.begin(), tokens.end());
  if (most >= vocab_)
    throw Error(ExitCode::config, fmt::format("token {} of the line is outside the vocabulary of {}", most, vocab_),
                line.where, "use the model's own tokenizer");
}

ContinuedPrompt TaskTokens::choice(const TaskLine& line, std::size_t i) try {
  const std::string whole = line.prompt + line.delimiter + line.choices[i];
  ContinuedPrompt made;
  std::size_t own = 1;
  const std::size_t end = end_without_space(line.prompt);
  if (line.prompt.empty()) {
    made.tokens = encode(whole, false);
    if (!made.tokens.empty() && made.tokens.front() != prefix()) made.tokens.insert(made.tokens.begin(), prefix());
  } else {
    const std::vector<std::int32_t> prompt = encode(std::string_view(line.prompt).substr(0, end), true);
    own = prompt.size();
    made.tokens = encode(whole, true);
    std::copy_n(prompt.begin(), std::min(own, made.tokens.size()), made.tokens.begin());
    if (own == 0) made.tokens.insert(made.tokens.begin(), prefix()), own = 1;  // a prompt of white space alone
  }
  check(made.tokens, line);
  if (made.tokens.size() <= own)
    throw bad_data(fmt::format("choice {} has no token of its own behind the prompt", i), line.where,
                   "write another delimiter or choice");
  made.targets = std::ssize(made.tokens) - static_cast<std::int64_t>(own);
  if (made.targets > sequence_)
    throw bad_data(fmt::format("choice {} has {} tokens, and the model sees {}", i, made.targets, sequence_),
                   line.where, "shorten it, or set train.sequence");
  if (const std::int64_t most = sequence_ + 1; std::ssize(made.tokens) > most) {
    made.tokens.erase(made.tokens.begin(), made.tokens.end() - most);
    ++truncated_;
  }
  return made;
} catch (const Error& error) {
  if (error.where().starts_with(line.where)) throw;
  throw named(error, line);
}

std::int64_t TaskTokens::most_generated(const TaskLine& line) const {
  return line.max_tokens.value_or(std::clamp<std::int64_t>(sequence_ / 2, 1, kMostGenerated));
}

std::vector<std::int32_t> TaskTokens::prompt(const TaskLine& line) try {
  const std::int64_t most = sequence_ - most_generated(line);
  if (most < 1)
    throw bad_data(
        fmt::format("max_tokens is {}, and the model sees {} tokens with the prompt", most_generated(line), sequence_),
        line.where, "lower it, or set train.sequence");
  std::vector<std::int32_t> tokens = encode(line.prompt, true);
  if (tokens.empty()) tokens.push_back(prefix());
  check(tokens, line);
  if (std::ssize(tokens) > most) {
    tokens.erase(tokens.begin(), tokens.end() - most);
    ++truncated_;
  }
  return tokens;
} catch (const Error& error) {
  if (error.where().starts_with(line.where)) throw;
  throw named(error, line);
}

std::string TaskTokens::text(const std::vector<std::int32_t>& drawn) const {
  if (tokenizer_ != nullptr) return tokenizer_->decode(drawn, true);
  std::string bytes;
  for (const std::int32_t token : drawn) bytes += token < 256 ? static_cast<char>(token) : '\0';
  return bytes;
}

}  // namespace zs
