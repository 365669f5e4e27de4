#include "model/train/rank/error_line.h"

#include <cerrno>

#include <algorithm>

#include "model/data/utf8.h"
#include "model/train/rank/program_words.h"
#include "runtime/base/standard_streams.h"

namespace zs {
namespace {

constexpr std::size_t kLongestShown = 300;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// Begin of a text, at most `bytes` bytes, cut between UTF-8 characters.
std::string keep_begin(const std::string& text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  if (bytes < 3) return {};
  std::size_t end = bytes - 3;
  while (end > 0 && is_continuation(text[end])) --end;
  return text.substr(0, end) + "...";
}

std::string keep_end(const std::string& text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  if (bytes < 3) return {};
  std::size_t begin = text.size() - (bytes - 3);
  while (begin < text.size() && is_continuation(text[begin])) ++begin;
  return "..." + text.substr(begin);
}

}  // namespace

std::string_view program_name() {
  constexpr std::string_view kInstalled = "zshard";
  return program_invocation_short_name == kInstalled ? kInstalled : "train";
}

void print_note(const std::string& text) { print_to_stderr("{}: note: {}\n", program_name(), escaped(text)); }

void print_warning(const std::string& text) { print_to_stderr("{}: warning: {}\n", program_name(), escaped(text)); }

std::string error_line(const Error& error, std::string_view place, std::string_view program) {
  std::string what = escaped(error.what_happened()), where = escaped(error.where()),
              todo = escaped(in_program_words(error.what_to_do()));
  if (error.where() != place) where += (where.empty() || place.empty() ? "" : ", ") + escaped(place);
  const std::string head = fmt::format("{}: error: ", program);
  const auto line = [&] {
    return head + what + (where.empty() ? "" : " (" + where + ")") + (todo.empty() ? "" : ": " + todo);
  };
  const auto excess = [&] { return line().size() > kLongestShown ? line().size() - kLongestShown : 0; };
  // Shorten in turn, each down to a floor at which it still says something.
  const auto floor_of = [](const std::string& text, std::size_t floor, std::size_t cut) {
    return std::max(std::min(text.size(), floor), text.size() - std::min(text.size(), cut));
  };
  if (const std::size_t cut = excess()) where = keep_end(where, floor_of(where, 60, cut));
  if (const std::size_t cut = excess()) what = keep_begin(what, floor_of(what, 80, cut));
  if (const std::size_t cut = excess()) todo = keep_begin(todo, floor_of(todo, 40, cut));
  return keep_begin(line(), kLongestShown);
}

}  // namespace zs
