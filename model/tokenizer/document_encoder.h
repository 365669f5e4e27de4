#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace zs {

/// Special tokens that a document gets beside those of its text. Automatic: what the tokenizer puts around a text and
/// the end-of-text token, but for those that the text has there itself, as one that a chat template has made.
enum class SpecialTokens : std::uint8_t { automatic, always, none };

/// Text to the ids of documents. Immutable.
class DocumentFrame {
 public:
  DocumentFrame(const Tokenizer& tokenizer, SpecialTokens special) : tokenizer_(tokenizer), special_(special) {}

  /// Appends what the tokenizer makes of prompt and text, each encoded by itself, and puts around both; returns how
  /// many ids the prompt has, with those before it. Throws what Encoder::encode throws.
  std::int64_t encode(Tokenizer::Encoder& encoder, std::string_view prompt, std::string_view text,
                      std::vector<std::int32_t>& out) const;
  /// The end-of-text token, where a document of these ids does not end with it.
  std::optional<std::int32_t> end_behind(std::string_view text, const std::vector<std::int32_t>& ids) const;

 private:
  void add_front(std::vector<std::int32_t>& ids, std::size_t begin) const;
  /// True where the end-of-text token is the last of the text but for white space.
  bool ends_itself(std::string_view text, const std::vector<std::int32_t>& ids) const;

  const Tokenizer& tokenizer_;
  SpecialTokens special_;
};

/// All of a file. Throws Error(dataset).
std::string read_text_file(const std::string& path);

/// The ids of texts as one sequence, in the order of the files, handed to `take` piece by piece. Each file is a
/// document: it gets the special tokens that the tokenizer puts around a text, and the end-of-text token, if the
/// tokenizer has one, stands between two documents, unless the first ends with it anyhow; as far as `special` has it.
/// Files without a token are passed over. Returns how many bytes of text there were.
///
/// `threads` threads of its own encode, each with one file in memory. Throws Error(dataset) that names the file and the
/// place, and what `take` throws. The ids do not depend on the number of threads.
std::int64_t encode_documents(const Tokenizer& tokenizer, const std::vector<std::string>& files, int threads,
                              SpecialTokens special,
                              const std::function<void(const std::vector<std::int32_t>& ids)>& take);

}  // namespace zs
