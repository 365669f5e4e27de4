#include "model/tokenizer/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>

#include "model/tokenizer/utf8.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

using Kind = NormalizerStep::Kind;

utf8proc_option_t form_options(Kind kind) {
  const int base = UTF8PROC_STABLE | (kind == Kind::nfc || kind == Kind::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  return static_cast<utf8proc_option_t>(base | (kind == Kind::nfkc || kind == Kind::nfkd ? UTF8PROC_COMPAT : 0));
}

/// Characters of Unicode 10 to 14 that are marks with a class, decompose, or compose. Normalization in tokenizers is
/// that of Unicode 9, for which they are nothing of the kind, and the ids are to be the same.
struct Range {
  char32_t first, last;
};
constexpr std::array<Range, 42> kNewer = {
    {{0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
     {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785},
     {0x10787, 0x107b0}, {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10f46, 0x10f50},
     {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
     {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
     {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
     {0x11d97, 0x11d97}, {0x16ff0, 0x16ff1}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
     {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}}};

bool is_newer(char32_t c) {
  const auto found = std::lower_bound(kNewer.begin(), kNewer.end(), c,
                                      [](const Range& range, char32_t value) { return range.last < value; });
  return found != kNewer.end() && found->first <= c;
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

void append_run(std::string_view run, utf8proc_option_t options, std::string& out) {
  utf8proc_uint8_t* made = nullptr;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(run.data());
  const utf8proc_ssize_t length = utf8proc_map(bytes, static_cast<utf8proc_ssize_t>(run.size()), &made, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, std::free);
  if (length == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  ZS_CHECK(length >= 0, "utf8proc: {}", utf8proc_errmsg(length));
  out.append(reinterpret_cast<const char*>(made), static_cast<std::size_t>(length));
}

/// ASCII never changes, and only what stands after it can compose with it. So a run of other characters is normalized
/// together with the one before, and the rest is copied, as newer characters are.
void append_form(std::string_view text, utf8proc_option_t options, std::string& out) {
  std::size_t copied = 0;
  while (copied < text.size()) {
    std::size_t begin = copied;
    while (begin < text.size() && is_ascii(text[begin])) ++begin;
    std::size_t end = begin;
    while (end < text.size() && !is_ascii(text[end]) && !is_newer(utf8_at(text, end))) end += utf8_length(text[end]);
    if (begin > copied && end > begin) --begin;
    out.append(text, copied, begin - copied);
    if (end > begin) append_run(text.substr(begin, end - begin), options, out);
    copied = end < text.size() && !is_ascii(text[end]) ? end + utf8_length(text[end]) : end;
    out.append(text, end, copied - end);
  }
}

/// The view that a step makes: of `text`, or of `out`.
std::string_view apply(const NormalizerStep& step, std::string_view text, std::string& out, Regex::Scratch& scratch) {
  out.clear();
  switch (step.kind) {
    case Kind::nfc:
    case Kind::nfd:
    case Kind::nfkc:
    case Kind::nfkd:
      if (std::all_of(text.begin(), text.end(), is_ascii)) return text;
      append_form(text, form_options(step.kind), out);
      return out;
    case Kind::prepend:
      if (text.empty() || step.text.empty()) return text;
      scratch.grow(step.text.size(), "normalizer, Prepend");
      out.append(step.text).append(text);
      return out;
    case Kind::replace: replace_matches(step.pattern.front(), text, step.text, scratch, out); return out;
    case Kind::strip:
      if (step.strip_left) text.remove_prefix(skip_space(text));
      return step.strip_right ? text.substr(0, space_at_end(text)) : text;
  }
  return text;
}

/// True where a step takes away the text's first characters.
bool loses_front(const NormalizerStep& step, std::string_view text, Regex::Scratch& scratch) {
  if (step.kind == Kind::strip) return step.strip_left && skip_space(text) > 0;
  if (step.kind != Kind::replace || !step.text.empty()) return false;
  const auto match = step.pattern.front().find(text, 0, scratch);
  return match && match->begin == 0 && match->end > 0;
}

}  // namespace

void replace_matches(const Regex& pattern, std::string_view text, std::string_view content, Regex::Scratch& scratch,
                     std::string& out) {
  std::size_t copied = 0;
  pattern.find_all(text, scratch, [&](TextRange match) {
    scratch.grow(content.size(), pattern.setting());
    out.append(text, copied, match.begin - copied).append(content);
    copied = match.end;
  });
  out.append(text, copied);
}

std::string_view normalize_text(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& buffer,
                                Regex::Scratch& scratch, bool* lost_front) {
  std::string other;
  for (const NormalizerStep& step : steps) {
    if (lost_front != nullptr) *lost_front = *lost_front || loses_front(step, text, scratch);
    const std::string_view made = apply(step, text, other, scratch);
    // A part of `buffer` stays valid as long as the other one is written.
    if (made.data() == other.data() && !made.empty()) {
      buffer.swap(other);
      text = std::string_view(buffer).substr(0, made.size());
    } else {
      text = made;
    }
  }
  return text;
}

}  // namespace zs
