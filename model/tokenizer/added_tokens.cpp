#include "model/tokenizer/added_tokens.h"

#include <algorithm>

#include "model/tokenizer/utf8.h"

namespace zs {
namespace {

std::uint64_t edge(std::int32_t node, char byte) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(node)) << 8 | static_cast<unsigned char>(byte);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<Pattern>& patterns, bool splits_special)
    : splits_special_(splits_special),
      word_character_(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])", "added_tokens") {
  first_.fill(-1);
  const auto add_node = [&] {
    token_of_.push_back(-1);
    return static_cast<std::int32_t>(token_of_.size() - 1);
  };
  for (const Pattern& pattern : patterns) {
    std::int32_t node = -1;
    for (const char byte : pattern.text) {
      std::int32_t& next = node < 0 ? first_[static_cast<unsigned char>(byte)]
                                    : children_.try_emplace(edge(node, byte), -1).first->second;
      if (next < 0) next = add_node();
      node = next;
    }
    if (node < 0 || token_of_[static_cast<std::size_t>(node)] >= 0) continue;  // the first of two equal ones counts
    token_of_[static_cast<std::size_t>(node)] = static_cast<std::int32_t>(tokens_.size());
    tokens_.push_back(pattern.token);
  }
}

std::int32_t AddedTokenMatcher::child(std::int32_t node, char byte) const {
  const auto found = children_.find(edge(node, byte));
  return found == children_.end() ? -1 : found->second;
}

AddedTokenMatcher::Found AddedTokenMatcher::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    std::int32_t node = first_[static_cast<unsigned char>(text[begin])];
    Found longest;
    for (std::size_t end = begin + 1; node >= 0; ++end) {
      if (const std::int32_t token = token_of_[static_cast<std::size_t>(node)]; token >= 0)
        longest = {begin, end, &tokens_[static_cast<std::size_t>(token)]};
      node = end < text.size() ? child(node, text[end]) : -1;
    }
    if (longest.token != nullptr) return longest;
  }
  return {};
}

bool AddedTokenMatcher::is_word_at(std::string_view text, std::size_t at, Regex::Scratch& scratch) const {
  return word_character_.find(text.substr(at, utf8_length(text[at])), 0, scratch).has_value();
}

void AddedTokenMatcher::split(std::string_view text, Regex::Scratch& scratch, const Each& each) const {
  std::size_t done = 0;
  const auto before = [&](std::size_t end) {  // the character that ends there
    while (is_utf8_continuation(text[--end])) {
    }
    return end;
  };
  for (Found found = find(text, 0); found.token != nullptr; found = find(text, found.end)) {
    std::size_t begin = found.begin, end = found.end;
    const AddedToken& token = *found.token;
    const bool touches_word = (begin > 0 && is_word_at(text, before(begin), scratch)) ||
                              (end < text.size() && is_word_at(text, end, scratch));
    if ((token.single_word && touches_word) || (token.special && splits_special_)) continue;
    if (token.lstrip) begin = std::max(done, space_at_end(text.substr(0, begin)));
    if (token.rstrip) end += skip_space(text.substr(end));
    if (done < begin) each(done, begin, nullptr);
    if (begin < end) each(begin, end, &token);  // the token before may have taken all of it as white space
    done = end;
  }
  if (done < text.size()) each(done, text.size(), nullptr);
}

}  // namespace zs
