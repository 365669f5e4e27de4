// Oniguruma's syntax in PCRE2's.

#include <algorithm>
#include <array>
#include <vector>

#include "model/tokenizer/regex.h"
#include "model/tokenizer/utf8.h"
#include "runtime/base/check.h"
#include "runtime/base/reader_limits.h"

namespace zs {
namespace {

// Classes as Oniguruma means them, as members of a class. PCRE2's own \s has U+180E too, its \w lacks marks, and its \h
// is something else.
constexpr const char* kSpace = "\\t-\\r\\x{85}\\p{Z}";
constexpr const char* kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr const char* kWordAlone = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";  // and these, where no class is around it
constexpr const char* kHexDigit = "0-9A-Fa-f";

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }
bool is_hex_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& setting) : pattern_(pattern), setting_(setting) {}

  std::string run() {
    if (pattern_.size() > ReaderLimits::kPatternBytes)
      refuse(fmt::format("more than {} bytes", ReaderLimits::kPatternBytes));
    if (find_invalid_utf8(pattern_) != kValidUtf8) refuse("bytes that are not UTF-8");
    if (pattern_.find('\0') != std::string_view::npos) refuse("a byte of 0");
    if (pattern_.starts_with("(?i)")) {
      take(4);
      caseless_.back() = true;
      out_ += "(?i)";
    }
    while (!is_end()) element();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ExitCode::model, fmt::format("a regular expression with {} is not supported", what), setting_);
  }
  bool is_end() const { return at_ >= pattern_.size(); }
  char next() const { return is_end() ? '\0' : pattern_[at_]; }
  bool has(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  std::string_view take(std::size_t bytes) {
    if (pattern_.size() - at_ < bytes) refuse("a missing end");
    const std::string_view taken = pattern_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }

  void element() {
    switch (next()) {
      case '\\': escape(); break;
      case '[': character_class(); break;
      case '(': group(); break;
      case ')':
        if (caseless_.size() == 1) refuse("an unmatched )");
        caseless_.pop_back();
        out_ += take(1);
        break;
      case '*':
      case '+':
      case '?': out_ += take(1); break;
      case '{': interval(); break;
      default: literal();
    }
  }

  /// Without case, Oniguruma takes some characters for two others (ß for ss), and PCRE2 does not.
  void literal() {
    const bool is_after_literal = literal_end_ == at_ && at_ > 0;
    const std::string_view pair = pattern_.substr(is_after_literal ? at_ - 1 : at_, 2);
    const std::string lower{static_cast<char>(pair[0] | 0x20), static_cast<char>(pair.size() > 1 ? pair[1] | 0x20 : 0)};
    if (caseless_.back() && static_cast<unsigned char>(next()) >= 0x80)
      refuse("a character other than ASCII that ignores case");
    constexpr std::array<std::string_view, 5> kLigatures = {"ss", "ff", "fi", "fl", "st"};
    if (caseless_.back() && is_after_literal &&
        std::find(kLigatures.begin(), kLigatures.end(), lower) != kLigatures.end())
      refuse(fmt::format("{} that ignores case", pair));
    out_ += take(1);
    literal_end_ = at_;
  }

  void group() {
    take(1);
    if (caseless_.size() > ReaderLimits::kPatternGroups) refuse("groups nested too deeply");
    caseless_.push_back(caseless_.back());
    out_ += '(';
    if (next() != '?') return;
    for (const std::string_view kind : {"?:", "?=", "?!", "?>", "?<=", "?<!", "?i:", "?-i:"}) {
      if (!has(kind)) continue;
      if (kind == "?i:") caseless_.back() = true;
      if (kind == "?-i:") caseless_.back() = false;
      out_ += take(kind.size());
      return;
    }
    refuse(fmt::format("({}", pattern_.substr(at_, 3)));
  }

  /// {n}, {n,}, {n,m}, {,m}; any other brace is a character.
  void interval() {
    std::size_t end = at_ + 1;
    const auto digits = [&] {
      const std::size_t begin = end;
      while (end < pattern_.size() && pattern_[end] >= '0' && pattern_[end] <= '9') ++end;
      return pattern_.substr(begin, end - begin);
    };
    const std::string_view low = digits();
    const bool has_comma = end < pattern_.size() && pattern_[end] == ',';
    if (has_comma) ++end;
    const std::string_view high = has_comma ? digits() : std::string_view();
    if (end >= pattern_.size() || pattern_[end] != '}' || (low.empty() && high.empty())) {
      take(1);
      out_ += "\\{";
      return;
    }
    at_ = end + 1;
    if (next() == '+' || (next() == '?' && !has_comma)) refuse("{n} followed by + or ?");
    out_ += fmt::format("{{{}{}{}}}", low.empty() ? "0" : low, has_comma ? "," : "", high);
  }

  void escape() {
    const char kind = pattern_.size() - at_ > 1 ? pattern_[at_ + 1] : '\0';
    const auto replaced = [&](const std::string& text) {
      take(2);
      out_ += text;
    };
    const std::string word = fmt::format("[{}{}]", kWord, kWordAlone);
    switch (kind) {
      case 's': return replaced(fmt::format("[{}]", kSpace));
      case 'S': return replaced(fmt::format("[^{}]", kSpace));
      case 'w': return replaced(word);
      case 'W': return replaced(fmt::format("[^{}{}]", kWord, kWordAlone));
      case 'h': return replaced(fmt::format("[{}]", kHexDigit));
      case 'H': return replaced(fmt::format("[^{}]", kHexDigit));
      case 'b': return replaced(fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word));
      case 'B': return replaced(fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word));
      case 'A':
      case 'z':
      case 'Z':
      case 'R': out_ += take(2); return;
      default: out_ += character_escape();
    }
  }

  /// An escape that means the same within a class and outside: one character, or a property.
  std::string character_escape() {
    take(1);
    if (is_end()) refuse("a \\ at its end");
    const char kind = next();
    if (!is_letter_or_digit(kind))
      return (static_cast<unsigned char>(kind) < 0x80 ? "\\" : "") + std::string(take(utf8_length(kind)));
    take(1);
    switch (kind) {
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e': return fmt::format("\\{}", kind);
      case 'v': return "\\x{b}";
      case 'd': return "\\p{Nd}";
      case 'D': return "\\P{Nd}";
      case 'x': return hex_escape();
      case 'u': return code_point(take(4));
      case 'p':
      case 'P': return property(kind);
      default: refuse(fmt::format("\\{}", kind));
    }
  }

  std::string code_point(std::string_view digits) {
    char32_t value = 0;
    if (digits.empty() || digits.size() > 6) refuse("a character's number that is no number");
    for (const char c : digits) {
      if (!is_hex_digit(c)) refuse("a character's number that is no number");
      value = value * 16 + static_cast<char32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) refuse("a number that no character has");
    return fmt::format("\\x{{{:x}}}", static_cast<std::uint32_t>(value));
  }

  std::string hex_escape() {
    if (next() == '{') {
      const std::size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) refuse("\\x{ without }");
      const std::string number = code_point(pattern_.substr(at_ + 1, end - at_ - 1));
      at_ = end + 1;
      return number;
    }
    const std::string_view digits = take(2);
    if (digits[0] > '7') refuse("\\x80 to \\xff");  // there they are bytes
    return code_point(digits);
  }

  std::string property(char kind) {
    if (next() != '{') refuse(fmt::format("\\{} without {{", kind));
    const std::size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) refuse(fmt::format("\\{}{{ without }}", kind));
    std::string name(pattern_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    const bool is_negated = name.starts_with('^');
    if (is_negated) name.erase(0, 1);
    for (const char c : name)
      if (!is_letter_or_digit(c) && c != '_') refuse(fmt::format("\\{}{{{}}}", kind, name));
    if (name.empty() || name.size() > 40) refuse("a property without a name");
    const bool is_category = name.size() <= 2;
    if (caseless_.back() && is_category && name.size() == 2 && (name[0] | 0x20) == 'l')
      refuse(fmt::format("\\p{{{}}} that ignores case", name));
    // PCRE2 would take script extensions without the prefix.
    const std::string prefix = is_category || name == "Alphabetic" || name == "Any" ? "" : "sc:";
    return fmt::format("\\{}{{{}{}}}", (kind == 'P') != is_negated ? 'P' : 'p', prefix, name);
  }

  void character_class() {
    take(1);
    const bool is_negated = next() == '^';
    if (is_negated) take(1);
    if (next() == ']') refuse("] as the first of a class");
    std::string members, alternatives;  // the latter: [^...], which cannot stand within [...]
    while (next() != ']') {
      if (is_end()) refuse("[ without ]");
      member(members, alternatives);
    }
    take(1);
    if (alternatives.empty()) {
      out_ += fmt::format("[{}{}]", is_negated ? "^" : "", members);
    } else {
      const std::string whole = (members.empty() ? "" : "[" + members + "]|") + alternatives.substr(1);
      out_ += is_negated ? "(?:(?!" + whole + ")[\\x{0}-\\x{10ffff}])" : "(?:" + whole + ")";
    }
  }

  void member(std::string& members, std::string& alternatives) {
    if (has("[")) refuse("a class within a class");
    if (has("&&")) refuse("&& in a class");
    if (next() != '\\') {
      if (caseless_.back() && static_cast<unsigned char>(next()) >= 0x80)
        refuse("a character other than ASCII that ignores case");
      members += take(utf8_length(next()));
      return;
    }
    const char kind = pattern_.size() - at_ > 1 ? pattern_[at_ + 1] : '\0';
    const auto set = [&](const char* text, bool is_inverse) {
      take(2);
      if (is_inverse) {
        alternatives += fmt::format("|[^{}]", text);
      } else {
        members += text;
      }
    };
    switch (kind) {
      case 's': return set(kSpace, false);
      case 'S': return set(kSpace, true);
      case 'w': return set(kWord, false);
      case 'W': return set(kWord, true);
      case 'h': return set(kHexDigit, false);
      case 'H': return set(kHexDigit, true);
      case 'b': return set("\\x{8}", false);
      default: members += character_escape();
    }
  }

  std::string_view pattern_;
  const std::string& setting_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t literal_end_ = 0;           // after the last literal
  std::vector<bool> caseless_ = {false};  // one for each open group
};

}  // namespace

std::string translate_regex(std::string_view pattern, const std::string& setting) {
  return Translator(pattern, setting).run();
}

}  // namespace zs
