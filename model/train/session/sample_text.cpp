#include "model/train/session/sample_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "model/data/utf8.h"
#include "runtime/base/check.h"

namespace zs {

std::vector<std::int32_t> SampleText::prompt(std::string_view text, const std::string& key) const {
  std::vector<std::int32_t> tokens;
  if (tokenizer_ != nullptr) {
    const auto end = tokenizer_->end_of_text();
    const DocumentFrame frame(*tokenizer_, special_);
    try {
      if (!text.empty()) frame.encode(*tokenizer_->make_encoder(), "", text, tokens);
    } catch (const Error& error) {
      throw Error(ExitCode::config, error.what_happened(), key + (error.where().empty() ? "" : ", " + error.where()),
                  error.what_to_do());
    }
    while (end && tokens.size() > 1 && tokens.back() == *end) tokens.pop_back();
    if (tokens.empty() && special_ != SpecialTokens::none) tokens = tokenizer_->frame().before;
    if (tokens.empty()) tokens.push_back(end.value_or(0));
  } else if (is_bytes_) {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    if (tokens.empty()) tokens.push_back('\n');
  } else {
    tokens.push_back(0);
  }
  check(tokens, key);
  return tokens;
}

void SampleText::check(const std::vector<std::int32_t>& tokens, const std::string& key) const {
  const std::int64_t most = *std::max_element(tokens.begin(), tokens.end());
  if (most >= vocab_)
    throw Error(ExitCode::config, fmt::format("token {} of the prompt is outside the vocabulary of {}", most, vocab_),
                key, "use the model's own tokens");
}

std::string SampleText::print(const std::string& text, const std::vector<std::int32_t>& prompt,
                              const std::vector<std::int32_t>& drawn, bool is_utf8) const {
  if (tokenizer_ != nullptr) {
    std::vector<std::int32_t> all = prompt;
    all.insert(all.end(), drawn.begin(), drawn.end());
    return printable(tokenizer_->decode(all, true), is_utf8);
  }
  if (!is_bytes_) return fmt::format("{}", fmt::join(drawn, " "));
  std::string bytes = text;
  for (const std::int32_t token : drawn) bytes += token < 256 ? static_cast<char>(token) : '\0';
  return printable(bytes, is_utf8);
}

}  // namespace zs
