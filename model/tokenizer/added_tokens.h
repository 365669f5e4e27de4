#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tokenizer/tokenizer_spec.h"

namespace zs {

/// Finds added tokens in a text: the leftmost, and of those that begin there the longest. Immutable.
class AddedTokenMatcher {
 public:
  struct Pattern {
    std::string text;
    AddedToken token;
  };
  /// `splits_special`: special tokens are passed over, as text like others.
  explicit AddedTokenMatcher(const std::vector<Pattern>& patterns, bool splits_special = false);

  bool empty() const { return tokens_.empty(); }
  /// Calls `each(begin, end, token)` for the parts of a text in order: added tokens with the white space that they
  /// take, and what stands between (token null).
  using Each = std::function<void(std::size_t begin, std::size_t end, const AddedToken* token)>;
  void split(std::string_view text, Regex::Scratch& scratch, const Each& each) const;

 private:
  struct Found {
    std::size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };
  Found find(std::string_view text, std::size_t from) const;
  bool is_word_at(std::string_view text, std::size_t at, Regex::Scratch& scratch) const;
  std::int32_t child(std::int32_t node, char byte) const;

  bool splits_special_;
  std::vector<AddedToken> tokens_;
  std::vector<std::int32_t> token_of_;     // by node of the trie of bytes; -1: none ends here
  std::array<std::int32_t, 256> first_{};  // nodes below the root; -1: none
  std::unordered_map<std::uint64_t, std::int32_t> children_;
  Regex word_character_;
};

}  // namespace zs
