// Token spellings to bytes, as the decoder of tokenizer.json has it.

#include <algorithm>
#include "model/tokenizer/bpe_tokenizer.h"

#include "model/tokenizer/normalize.h"
#include "model/tokenizer/utf8.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

using Texts = std::vector<std::string>;

std::string joined(const Texts& texts, std::string_view between = {}) {
  std::string whole;
  for (std::size_t i = 0; i < texts.size(); ++i) whole.append(i == 0 ? std::string_view() : between).append(texts[i]);
  return whole;
}

void replace_text(std::string& text, std::string_view from, std::string_view to) {
  std::string made;
  std::size_t copied = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, copied)) {
    made.append(text, copied, at - copied).append(to);
    copied = at + from.size();
  }
  if (copied > 0) text = made.append(text, copied);
}

/// A token with a character outside the alphabet stands for itself.
std::string alphabet_bytes(const std::string& token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size(); at += utf8_length(token[at])) {
    const int byte = character_byte(utf8_at(token, at));
    if (byte < 0) return token;
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = static_cast<char>(c | 0x20);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/// The byte of a token <0x0A>, or -1.
int fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_value(token[3]), low = hex_value(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

void join_fallback_bytes(Texts& texts) {
  Texts made;
  bool is_open = false;
  for (std::string& text : texts) {
    const int byte = fallback_byte(text);
    if (byte < 0) {
      made.push_back(std::move(text));
    } else {
      if (!is_open) made.emplace_back();
      made.back() += static_cast<char>(byte);
    }
    is_open = byte >= 0;
  }
  texts = std::move(made);
}

/// Bytes that are no characters stay as they are.
std::string replaced(const Regex& pattern, std::string_view text, std::string_view content, Regex::Scratch& scratch) {
  std::string out;
  while (!text.empty()) {
    const std::size_t valid = std::min(find_invalid_utf8(text), text.size());
    if (valid > 0) replace_matches(pattern, text.substr(0, valid), content, scratch, out);
    out.append(text.substr(valid, 1));
    text.remove_prefix(std::min(valid + 1, text.size()));
  }
  return out;
}

void strip(const DecoderStep& step, std::string& text) {
  const std::string& content = step.text;
  std::string_view rest = text;
  for (std::int64_t i = 0; i < step.start && rest.starts_with(content); ++i) rest.remove_prefix(content.size());
  for (std::int64_t i = 0; i < step.stop && rest.ends_with(content); ++i) rest.remove_suffix(content.size());
  text = std::string(rest);
}

void apply(const DecoderStep& step, Texts& texts, Regex::Scratch& scratch, const std::string& file) {
  using Kind = DecoderStep::Kind;
  switch (step.kind) {
    case Kind::byte_level:
      for (std::string& text : texts) text = alphabet_bytes(text);
      texts = {joined(texts)};
      return;
    case Kind::replace:
      for (std::string& text : texts) text = replaced(step.pattern.front(), text, step.text, scratch);
      return;
    case Kind::byte_fallback: join_fallback_bytes(texts); return;
    case Kind::fuse: texts = {joined(texts)}; return;
    case Kind::strip:
      for (std::string& text : texts) strip(step, text);
      return;
    case Kind::metaspace:
      for (std::size_t i = 0; i < texts.size(); ++i)
        replace_text(texts[i], step.text, i == 0 && step.prepend_scheme != PrependScheme::never ? "" : " ");
      return;
    case Kind::suffix:
      for (std::size_t i = 0; i < texts.size() && !step.text.empty(); ++i)
        replace_text(texts[i], step.text, i + 1 == texts.size() ? "" : " ");
      return;
    case Kind::unsupported:
      throw Error(ExitCode::model, fmt::format("the decoder {} is not supported", step.text), file,
                  "use a tokenizer without it");
  }
}

}  // namespace

std::string decode_tokens(const TokenizerSpec& spec, std::vector<std::string> tokens, const std::string& file) {
  if (!spec.has_decoder) return joined(tokens, " ");
  Regex::Scratch scratch;
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  scratch.begin_text(bytes);
  for (const DecoderStep& step : spec.decoder) apply(step, tokens, scratch, file);
  return joined(tokens);
}

}  // namespace zs
