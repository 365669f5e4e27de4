#include "model/train/config/toml_nesting.h"

#include <algorithm>

#include "runtime/base/reader_limits.h"

namespace zs {
namespace {

/// Place after the string that begins at `at`.
std::size_t after_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const bool has_escapes = quote == '"';
  const bool is_long = text.substr(at, 3) == std::string_view(has_escapes ? R"(""")" : "'''");
  const std::string_view end = text.substr(at, is_long ? 3 : 1);
  for (at += end.size(); at < text.size(); ++at) {
    if (text[at] == '\\' && has_escapes) {
      ++at;
    } else if (text[at] == '\n' && !is_long) {
      return at;  // ends the line, and the parser's patience
    } else if (text.substr(at, end.size()) == end) {
      at += end.size();
      // Up to two quotes before the closing three belong to the string.
      for (int more = 0; is_long && more < 2 && at < text.size() && text[at] == quote; ++more) ++at;
      return at;
    }
  }
  return text.size();
}

}  // namespace

std::optional<std::int64_t> too_deep_line(std::string_view text) {
  std::int64_t line = 1;
  int brackets = 0, dots = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '"' || c == '\'') {
      const std::size_t end = std::min(after_string(text, at), text.size());
      line += std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                         text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
      at = end;
      continue;
    }
    if (c == '[' || c == '{') ++brackets;
    if (c == ']' || c == '}') brackets = std::max(brackets - 1, 0);
    if (c == '.') ++dots;
    if (std::string_view("[]{}=,\n").find(c) != std::string_view::npos) dots = 0;
    if (brackets > ReaderLimits::kTomlDepth || dots >= ReaderLimits::kTomlDepth) return line;
    if (c == '\n') ++line;
    ++at;
  }
  return std::nullopt;
}

}  // namespace zs
