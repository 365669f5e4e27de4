#include "model/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>

#include "model/tokenizer/utf8.h"
#include "runtime/base/check.h"

namespace zs {

struct Regex::Code {
  pcre2_code* code = nullptr;
  Code() = default;
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

struct Regex::Scratch::State {
  // Pages of the stack are taken only where a pattern nests that far.
  static constexpr std::size_t kFirstStackBytes = 32 << 10, kMostStackBytes = 64 << 20;
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kFirstStackBytes, kMostStackBytes, nullptr);
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

Regex::Scratch::Scratch() : state_(std::make_unique<State>()) {
  if (state_->data == nullptr || state_->context == nullptr) throw std::bad_alloc();
  if (state_->stack != nullptr)
    pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);  // none: there is no JIT here
}

Regex::Scratch::~Scratch() = default;

Regex::Regex(const std::string& pattern, const std::string& setting) : setting_(setting) {
  const std::string translated = translate_regex(pattern, setting);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  auto code = std::make_shared<Code>();
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context.get());
  if (code->code == nullptr) {
    std::array<PCRE2_UCHAR, 200> reason{};
    pcre2_get_error_message(error, reason.data(), reason.size());
    throw Error(
        ExitCode::model,
        fmt::format("the regular expression is not supported: {}", reinterpret_cast<const char*>(reason.data())),
        setting);
  }
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // without it matching is slower, and the same
  code_ = std::move(code);
}

Regex Regex::literal(std::string_view text, const std::string& setting) {
  std::string pattern;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          static_cast<unsigned char>(c) >= 0x80;
    if (!is_plain) {
      pattern += fmt::format("\\x{{{:x}}}", static_cast<unsigned char>(c));
    } else {
      pattern += c;
    }
  }
  return Regex(pattern, setting);
}

std::size_t Regex::char_length(char lead) { return utf8_length(lead); }

std::optional<TextRange> Regex::find(std::string_view text, std::size_t from, Scratch& scratch) const {
  const auto& state = *scratch.state_;
  const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                PCRE2_NO_UTF_CHECK, state.data, state.context);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) {
    std::array<PCRE2_UCHAR, 200> reason{};
    pcre2_get_error_message(found, reason.data(), reason.size());
    throw Error(
        ExitCode::model,
        fmt::format("the regular expression fails on this text: {}", reinterpret_cast<const char*>(reason.data())),
        setting_);
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state.data);
  return TextRange{range[0], range[1]};
}

}  // namespace zs
