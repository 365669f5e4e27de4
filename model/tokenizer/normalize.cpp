#include "model/tokenizer/normalize.h"

#include <utf8proc.h>

#include <algorithm>
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

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

/// ASCII never changes, and only what stands behind it can compose with it. So a run of other characters is normalized together with the
/// one before, and the rest is copied.
void append_form(std::string_view text, utf8proc_option_t options, std::string& out) {
  std::size_t copied = 0;
  while (copied < text.size()) {
    std::size_t begin = copied;
    while (begin < text.size() && is_ascii(text[begin])) ++begin;
    std::size_t end = begin;
    while (end < text.size() && !is_ascii(text[end])) ++end;
    if (begin > copied && end > begin) --begin;
    out.append(text, copied, begin - copied);
    copied = end;
    if (begin == end) break;
    utf8proc_uint8_t* made = nullptr;
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + begin);
    const utf8proc_ssize_t length = utf8proc_map(bytes, static_cast<utf8proc_ssize_t>(end - begin), &made, options);
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, std::free);
    if (length == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
    ZS_CHECK(length >= 0, "utf8proc: {}", utf8proc_errmsg(length));
    out.append(reinterpret_cast<const char*>(made), static_cast<std::size_t>(length));
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
      out.append(step.text).append(text);
      return out;
    case Kind::replace: replace_matches(step.pattern.front(), text, step.text, scratch, out); return out;
    case Kind::strip:
      if (step.strip_left) text.remove_prefix(skip_space(text));
      return step.strip_right ? text.substr(0, space_at_end(text)) : text;
  }
  return text;
}

}  // namespace

void replace_matches(const Regex& pattern, std::string_view text, std::string_view content, Regex::Scratch& scratch, std::string& out) {
  std::size_t copied = 0;
  pattern.find_all(text, scratch, [&](TextRange match) {
    out.append(text, copied, match.begin - copied).append(content);
    copied = match.end;
  });
  out.append(text, copied);
}

std::string_view normalize_text(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& buffer,
                                Regex::Scratch& scratch) {
  std::string other;
  for (const NormalizerStep& step : steps) {
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
