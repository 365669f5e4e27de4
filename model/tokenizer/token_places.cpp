#include "model/tokenizer/token_places.h"

#include <algorithm>
#include <charconv>

#include "model/tokenizer/utf8.h"

namespace zs {
namespace {

bool is_space_at(std::string_view text, std::size_t at) {
  return at < text.size() && std::string_view(" \t\r\n").find(text[at]) != std::string_view::npos;
}

/// Walks over a part's text along the surfaces of its tokens.
class PartWalk {
 public:
  PartWalk(std::string_view text, std::size_t begin) : text_(text), first_(begin) {}

  TokenPlace next(std::string_view surface) {
    if (is_lost_ && !is_space_at(surface, 0)) return word();
    if (is_lost_) at_ = word_end();
    is_lost_ = false;
    if (takes(surface)) return place(surface.size());
    while (!is_space_at(surface, 0) && is_space_at(text_, at_)) ++at_;  // white space that has no tokens
    if (takes(surface)) return place(surface.size());
    if (surface.starts_with(' ') && takes(surface.substr(1))) {  // a space that the tokenizer has put before a word
      if (surface.size() > 1) return place(surface.size() - 1);
      const std::size_t length = at_ < text_.size() ? std::min(utf8_length(text_[at_]), text_.size() - at_) : 0;
      return {first_ + at_, first_ + at_ + length};
    }
    is_lost_ = true;
    return word();
  }

 private:
  bool takes(std::string_view surface) const { return text_.compare(at_, surface.size(), surface) == 0; }
  TokenPlace place(std::size_t length) {
    at_ += length;
    return {first_ + at_ - length, first_ + at_};
  }
  std::size_t word_end() const {
    std::size_t end = at_;
    while (end < text_.size() && is_space_at(text_, end)) ++end;
    while (end < text_.size() && !is_space_at(text_, end)) ++end;
    return end;
  }
  TokenPlace word() const { return {first_ + at_, first_ + word_end()}; }

  std::string_view text_;
  std::size_t first_, at_ = 0;
  bool is_lost_ = false;  // up to the next white space
};

}  // namespace

std::vector<TokenPlace> token_places(const Tokenizer& tokenizer, std::string_view text,
                                     std::span<const std::int32_t> ids, std::span<const EncodedPart> parts) {
  std::vector<TokenPlace> places;
  places.reserve(ids.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const EncodedPart& part = parts[i];
    const std::size_t end = i + 1 < parts.size() ? parts[i + 1].first_id : ids.size();
    PartWalk walk(text.substr(part.begin, part.end - part.begin), part.begin);
    for (std::size_t id = part.first_id; id < end; ++id)
      places.push_back(part.is_token ? TokenPlace{part.begin, part.end} : walk.next(tokenizer.surface(ids[id])));
  }
  return places;
}

std::string bytes_of(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size(); i += utf8_length(token[i])) {
    const int byte = character_byte(utf8_at(token, i));
    if (byte < 0) return std::string(token);
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

std::string plain_piece(std::string_view token) {
  constexpr std::string_view kMetaspace = "\xe2\x96\x81";
  unsigned byte = 0;
  if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
      std::from_chars(token.data() + 3, token.data() + 5, byte, 16).ptr == token.data() + 5)
    return std::string(1, static_cast<char>(byte));
  std::string plain;
  for (std::size_t at = 0; at < token.size();) {
    const std::size_t found = std::min(token.find(kMetaspace, at), token.size());
    plain += token.substr(at, found - at);
    if (found < token.size()) plain += ' ';
    at = found + kMetaspace.size();
  }
  return plain;
}

}  // namespace zs
