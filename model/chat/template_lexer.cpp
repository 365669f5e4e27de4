#include "model/chat/template_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "model/chat/value.h"
#include "model/tokenizer/utf8.h"

namespace zs::jinja {
namespace {

using TokenKind = TemplateToken::Kind;

constexpr std::string_view kSpace = " \t\n\r\v\f";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Lines end with \n, and the last one's end does not count.
std::string normalized_lines(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r')
      text += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      text += '\n';
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class TemplateLexer {
 public:
  explicit TemplateLexer(std::string_view source) : text_(normalized_lines(source)) {}

  std::vector<TemplateToken> run() {
    while (at_ < text_.size()) {
      const std::size_t tag = next_tag();
      const bool is_tag = tag != std::string::npos;
      const char sign = is_tag && tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      add_data(tag, sign);
      if (!is_tag) break;
      switch (text_[tag + 1]) {
        case '#': skip_comment(tag); break;
        case '{': lex_tag(tag, sign, TokenKind::variable_begin); break;
        default:
          if (!lex_raw(tag)) lex_tag(tag, sign, TokenKind::block_begin);
      }
      starts_line_ = text_[at_ - 1] == '\n';
    }
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(const std::string& what) const {
    throw TemplateError(TemplateError::Kind::syntax, what, line_);
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void move_to(std::size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }

  std::size_t next_tag() const {
    for (std::size_t brace = text_.find('{', at_); brace != std::string::npos; brace = text_.find('{', brace + 1))
      if (brace + 1 < text_.size() && std::string_view("{%#").find(text_[brace + 1]) != std::string_view::npos)
        return brace;
    return std::string::npos;
  }

  /// Text up to a tag, or the end, less the white space that the tag takes.
  void add_data(std::size_t tag, char sign) {
    const std::size_t end = std::min(tag, text_.size());
    std::string_view data = std::string_view(text_).substr(at_, end - at_);
    if (sign == '-') {
      const std::size_t last = data.find_last_not_of(kSpace);
      data = data.substr(0, last + 1);
    } else if (tag != std::string::npos && sign != '+' && text_[tag + 1] != '{') {
      const std::size_t line = data.rfind('\n') + 1;
      if ((line > 0 || starts_line_) && data.find_first_not_of(kSpace, line) == data.npos) data = data.substr(0, line);
    }
    if (!data.empty()) add(TokenKind::data, std::string(data));
    move_to(end);
  }

  std::size_t behind_space(std::size_t from) const {
    return std::min(text_.find_first_not_of(kSpace, from), text_.size());
  }

  /// Behind the end of a tag at `end`, which has `sign` before it, and what it takes.
  std::size_t behind_tag(std::size_t end, char sign, bool trims_line = true) const {
    if (sign == '-') return behind_space(end + 2);
    return end + 2 + (trims_line && sign != '+' && end + 2 < text_.size() && text_[end + 2] == '\n' ? 1 : 0);
  }

  void skip_comment(std::size_t tag) {
    const std::size_t end = text_.find("#}", tag + 2);
    if (end == std::string::npos) error("a comment does not end: '#}' is missing");
    move_to(behind_tag(end, text_[end - 1] == '-' || text_[end - 1] == '+' ? text_[end - 1] : '\0'));
  }

  /// A tag of one word; begin npos: there is none.
  struct WordTag {
    std::size_t begin = std::string::npos, end = 0;
    char sign = '\0', end_sign = '\0';
  };
  WordTag word_tag(std::string_view word, std::size_t begin) const {
    std::size_t at = begin + 2;
    WordTag tag;
    if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) tag.sign = text_[at++];
    at = behind_space(at);
    if (text_.compare(at, word.size(), word) != 0) return tag;
    at = behind_space(at + word.size());
    if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) tag.end_sign = text_[at++];
    if (text_.compare(at, 2, "%}") != 0) return tag;
    tag.begin = begin;
    tag.end = at;
    return tag;
  }

  bool lex_raw(std::size_t begin) {
    const WordTag raw = word_tag("raw", begin);
    if (raw.begin == std::string::npos) return false;
    move_to(behind_tag(raw.end, raw.end_sign, false));
    starts_line_ = text_[at_ - 1] == '\n';
    for (std::size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 2)) {
      const WordTag end = word_tag("endraw", tag);
      if (end.begin == std::string::npos) continue;
      add_data(tag, end.sign);
      move_to(behind_tag(end.end, end.end_sign));
      return true;
    }
    error("a raw block does not end: 'endraw' is missing");
  }

  void lex_tag(std::size_t tag, char sign, TokenKind kind) {
    add(kind, "");
    move_to(tag + (sign == '-' || sign == '+' ? 3 : 2));
    const std::string_view closing = kind == TokenKind::block_begin ? "%}" : "}}";
    std::string open;  // brackets
    for (;;) {
      move_to(behind_space(at_));
      if (at_ == text_.size()) error(fmt::format("a tag does not end: '{}' is missing", closing));
      const char next = text_[at_];
      const bool has_sign = next == '-' || (next == '+' && kind == TokenKind::block_begin);
      const std::size_t end = at_ + (has_sign ? 1 : 0);
      if (open.empty() && text_.compare(end, 2, closing) == 0) {
        add(kind == TokenKind::block_begin ? TokenKind::block_end : TokenKind::variable_end, "");
        return move_to(behind_tag(end, has_sign ? next : '\0', kind == TokenKind::block_begin));
      }
      lex_word(open);
    }
  }

  /// One token of an expression.
  void lex_word(std::string& open) {
    const char c = text_[at_];
    if (begins_name(c)) {
      std::size_t end = at_;
      while (end < text_.size() && (begins_name(text_[end]) || is_digit(text_[end]))) ++end;
      return take(TokenKind::name, end);
    }
    if (is_digit(c)) return lex_number();
    if (c == '\'' || c == '"') return lex_string();
    constexpr std::array<std::string_view, 26> kOps = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                                       "/",  "%",  "~",  "(",  ")",  "[",  "]", "{", "}",
                                                       "<",  ">",  "=",  ",",  ".",  ":",  "|", ";"};
    for (const std::string_view op : kOps) {
      if (text_.compare(at_, op.size(), op) != 0) continue;
      match_brackets(op.front(), open);
      return take(TokenKind::op, at_ + op.size());
    }
    error(fmt::format("'{}' has no place in an expression", c >= ' ' && c <= '~' ? std::string(1, c) : "a character"));
  }

  void match_brackets(char c, std::string& open) const {
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (open.empty() || open.back() != c) error(fmt::format("'{}' closes nothing", c));
    open.pop_back();
  }

  void take(TokenKind kind, std::size_t end) {
    add(kind, text_.substr(at_, end - at_));
    move_to(end);
  }

  void lex_number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < text_.size() &&
             (is_digit(text_[end]) || (text_[end] == '_' && end + 1 < text_.size() && is_digit(text_[end + 1]))))
        ++end;
    };
    digits();
    TokenKind kind = TokenKind::integer;
    if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      kind = TokenKind::real;
      ++end;
      digits();
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const std::size_t exponent =
          end + 1 + (end + 1 < text_.size() && (text_[end + 1] == '-' || text_[end + 1] == '+') ? 1 : 0);
      if (exponent < text_.size() && is_digit(text_[exponent])) {
        kind = TokenKind::real;
        end = exponent;
        digits();
      }
    }
    if (end < text_.size() && begins_name(text_[end])) error("a number goes on as a name");
    take(kind, end);
    std::erase(tokens_.back().text, '_');
  }

  void lex_string() {
    const char quote = text_[at_];
    std::string out;
    std::size_t i = at_ + 1;
    for (; i < text_.size() && text_[i] != quote; ++i) {
      if (text_[i] != '\\')
        out += text_[i];
      else if (++i < text_.size())
        i = unescape(i, out);
    }
    if (i >= text_.size()) error("a string does not end");
    add(TokenKind::string, std::move(out));
    move_to(i + 1);
  }

  /// Appends what an escape stands for, whose letter is at `i`; returns where it ends.
  std::size_t unescape(std::size_t i, std::string& out) const {
    constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
    const char c = text_[i];
    if (const std::size_t known = kLetters.find(c); known != kLetters.npos) return out += kMeant[known], i;
    if (c == '\n') return i;
    const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (count == 0) {
      if (is_digit(c) || c == 'N') error("this kind of escape in a string is not supported");
      out += {'\\', c};
      return i;
    }
    const std::string digits = text_.substr(i + 1, count);
    if (digits.size() < count || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
      error("an escape in a string lacks digits");
    const unsigned long code = std::stoul(digits, nullptr, 16);
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) error("an escape in a string is no character");
    append_utf8(static_cast<char32_t>(code), out);
    return i + count;
  }

  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool starts_line_ = true;
  std::vector<TemplateToken> tokens_;
};

}  // namespace

std::vector<TemplateToken> lex_template(std::string_view source) { return TemplateLexer(source).run(); }

}  // namespace zs::jinja
