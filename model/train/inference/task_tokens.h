#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "model/train/config/config.h"
#include "model/train/inference/task_file.h"

namespace zs {

/// Tokens of a prompt and what continues it: at least one before the `targets` last ones.
struct ContinuedPrompt {
  std::vector<std::int32_t> tokens;
  std::int64_t targets = 0;
};

/// Tokens of tasks as lm-evaluation-harness makes them (lm_eval 0.4, models/huggingface.py and api/model.py): white
/// space at the prompt's end moves to what continues it; both are encoded as one text, and what follows the prompt's
/// own number of tokens is the continuation; those before stay the prompt's own. The tokenizer puts its special tokens
/// before (data.special_tokens); an empty prompt is its begin-of-text token, or else its end-of-text token. What is too
/// long loses its beginning. `tokenizer`, null for bytes, outlives it.
class TaskTokens {
 public:
  TaskTokens(const Config& config, const Tokenizer* tokenizer);

  /// Tokens of the line's choice `i`: at most train.sequence + 1. Error(dataset) where the choice has no token of its
  /// own or does not fit.
  ContinuedPrompt choice(const TaskLine& line, std::size_t i);
  /// Tokens of the line's prompt, never none: at most train.sequence less those that may be generated.
  std::vector<std::int32_t> prompt(const TaskLine& line);
  /// Number of tokens that may be generated: max_tokens, or 256 where half the sequence is not less.
  std::int64_t most_generated(const TaskLine& line) const;
  /// Text of generated tokens.
  std::string text(const std::vector<std::int32_t>& drawn) const;
  /// Number of prompts, each with one of its choices, that lost their beginning so far.
  std::int64_t truncated() const { return truncated_; }
  /// Number of tokens that the model sees at most.
  std::int64_t sequence() const { return sequence_; }

 private:
  std::vector<std::int32_t> encode(std::string_view text, bool has_special) const;
  /// Token that stands for an empty prompt.
  std::int32_t prefix() const;
  void check(const std::vector<std::int32_t>& tokens, const TaskLine& line) const;

  std::int64_t vocab_, sequence_;
  bool has_special_tokens_, is_always_special_;
  const Tokenizer* tokenizer_;
  std::unique_ptr<Tokenizer::Encoder> encoder_;
  std::int64_t truncated_ = 0;
};

}  // namespace zs
