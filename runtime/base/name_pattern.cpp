#include "runtime/base/name_pattern.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/base/check.h"

namespace zs {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// Integers between dots are "{*}"; of a pattern what stands in braces is, too.
std::string with_open_integers(std::string_view name) {
  std::string text;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view word = name.substr(begin, end - begin);
    const bool is_integer = !word.empty() && std::all_of(word.begin(), word.end(), is_digit);
    const bool is_braced = word.size() > 2 && word.front() == '{' && word.back() == '}';
    if (begin > 0) text += '.';
    text += is_integer || is_braced ? std::string_view("{*}") : word;
    begin = end + 1;
  }
  return text;
}

}  // namespace

NamePattern::NamePattern(std::string text) : text_(std::move(text)) {
  for (std::size_t i = 0; i < text_.size(); ++i) {
    const std::size_t close = text_[i] == '{' ? text_.find('}', i) : std::string::npos;
    if (close != std::string::npos) {
      parts_.push_back(braces(std::string_view(text_).substr(i + 1, close - i - 1)));
      i = close;
    } else if (text_[i] == '*' || text_[i] == '?') {
      parts_.push_back({text_[i] == '*' ? Part::Kind::any : Part::Kind::one});
    } else {
      parts_.push_back({Part::Kind::literal, text_[i]});
    }
  }
  for (std::size_t part = 0; part < parts_.size(); ++part) check_range(part);
}

void NamePattern::refuse(const std::string& what, const std::string& what_to_do) const {
  throw Error(ExitCode::config, fmt::format("the pattern \"{}\" has {}", text_, what), {}, what_to_do);
}

NamePattern::Part NamePattern::braces(std::string_view content) const {
  if (content == "*") return {Part::Kind::integer};
  const auto dashes = std::count(content.begin(), content.end(), '-');
  if (dashes != 1)
    refuse(fmt::format("\"{{{}}}\"", content), "braces hold {*}, any integer, or {a-b}, an integer from a to b");
  const std::size_t dash = content.find('-');
  const auto low = number_of(trimmed(content.substr(0, dash))), high = number_of(trimmed(content.substr(dash + 1)));
  if (!low || !high) refuse(fmt::format("\"{{{}}}\", whose ends are not both integers", content), "write it as {0-11}");
  if (*low > *high)
    refuse(fmt::format("\"{{{}}}\", whose first end is above the second", content),
           fmt::format("write {{{}-{}}}", *high, *low));
  return {Part::Kind::range, 0, *low, *high};
}

bool NamePattern::Part::may_be_digit() const { return kind != Kind::literal || is_digit(literal); }

void NamePattern::check_range(std::size_t part) const {
  if (parts_[part].kind != Part::Kind::range) return;
  const bool touches =
      (part > 0 && parts_[part - 1].may_be_digit()) || (part + 1 < parts_.size() && parts_[part + 1].may_be_digit());
  if (touches)
    refuse(fmt::format("{{{}-{}}} beside what may be a digit as well", parts_[part].low, parts_[part].high),
           "put a dot or another character between them, as in \"*.{0-3}\"");
}

bool NamePattern::Part::takes(std::string_view digits) const {
  if (kind == Kind::integer) return true;
  const auto value = number_of(digits);  // none: larger than any bound
  return value && *value >= low && *value <= high;
}

/// Keeps the lengths of the name's begin that the parts so far can have taken, part after part.
bool NamePattern::matches(std::string_view name) const {
  std::vector<bool> taken(name.size() + 1);
  taken[0] = true;
  for (const Part& part : parts_) {
    std::vector<bool> next(name.size() + 1);
    for (std::size_t begin = 0; begin <= name.size(); ++begin) {
      if (part.kind == Part::Kind::any) {
        next[begin] = taken[begin] || (begin > 0 && next[begin - 1]);
        continue;
      }
      if (!taken[begin] || begin == name.size()) continue;
      if (part.kind == Part::Kind::one || (part.kind == Part::Kind::literal && part.literal == name[begin]))
        next[begin + 1] = true;
      if (part.kind != Part::Kind::integer && part.kind != Part::Kind::range) continue;
      for (std::size_t end = begin; end < name.size() && is_digit(name[end]); ++end)
        if (part.takes(name.substr(begin, end + 1 - begin))) next[end + 1] = true;
    }
    taken = std::move(next);
  }
  return taken[name.size()];
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::vector<std::string> nearest_names(std::string_view pattern, const std::vector<std::string>& names,
                                       std::size_t count) {
  constexpr std::size_t kLongest = 200;  // the distance costs the product of two lengths
  const std::string wanted = with_open_integers(pattern.substr(0, kLongest));
  std::map<std::string, std::size_t> places;  // first place of each form of name, so that equals stay in order
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!names[i].empty() && names[i].size() <= kLongest) places.emplace(with_open_integers(names[i]), i);
  std::vector<std::pair<std::pair<std::size_t, std::size_t>, std::string>> ranked;
  for (const auto& [name, place] : places) ranked.push_back({{edit_distance(wanted, name), place}, name});
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> nearest;
  for (std::size_t i = 0; i < std::min(count, ranked.size()); ++i) nearest.push_back(ranked[i].second);
  return nearest;
}

}  // namespace zs
