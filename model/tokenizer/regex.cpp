#include "model/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <new>

#include "model/tokenizer/utf8.h"
#include "runtime/base/check.h"
#include "runtime/base/reader_limits.h"

namespace zs {
namespace {

constexpr double kSlowSeconds = 0.05;

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool is_native = false;  // compiled by the just-in-time compiler
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

  std::int64_t text_bytes = -1;    // below 0: no text has begun
  std::int64_t bytes_left = 0;     // that steps may make of it
  double begin_s = 0, most_s = 0;  // processor time of the thread
  double look_again_s = 0;         // by the clock that costs little
  int calls = 0;

  void begin_text(std::size_t bytes);
  void check_time(const std::string& setting);

  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

void Regex::Scratch::State::begin_text(std::size_t bytes) {
  using Limits = ReaderLimits;
  text_bytes = static_cast<std::int64_t>(bytes);
  bytes_left = Limits::kTextGrowth * text_bytes + Limits::kTextGrowthBytes;
  most_s = Limits::kPatternSeconds + static_cast<double>(bytes) * Limits::kPatternSecondsPerByte;
  begin_s = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  look_again_s = seconds_of(CLOCK_MONOTONIC_COARSE) + most_s;
}

/// A thread may use no more of its processor than the clock on the wall says.
void Regex::Scratch::State::check_time(const std::string& setting) {
  const double now = seconds_of(CLOCK_MONOTONIC_COARSE);
  if (now < look_again_s) return;
  const double left = begin_s + most_s - seconds_of(CLOCK_THREAD_CPUTIME_ID);
  if (left <= 0)
    throw Error(
        ExitCode::model,
        fmt::format("the regular expression takes more than {:.0f} s for a text of {} bytes", most_s, text_bytes),
        setting, "use a tokenizer whose expressions take time in proportion to the text, or cut the text");
  look_again_s = now + left;
}

Regex::Scratch::Scratch() : state_(std::make_unique<State>()) {
  if (state_->data == nullptr || state_->context == nullptr) throw std::bad_alloc();
  if (state_->stack != nullptr)
    pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);  // none: there is no JIT here
}

void Regex::Scratch::begin_text(std::size_t bytes) { state_->begin_text(bytes); }

void Regex::Scratch::grow(std::size_t bytes, const std::string& step) {
  if (state_->text_bytes < 0) begin_text(0);
  state_->bytes_left -= static_cast<std::int64_t>(std::min(bytes, std::size_t{1} << 40));
  if (state_->bytes_left < 0)
    throw Error(ExitCode::model,
                fmt::format("the tokenizer makes more than {} times {} bytes of a text", ReaderLimits::kTextGrowth,
                            state_->text_bytes),
                step, "use a tokenizer without this step");
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
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT, &error, &offset, context.get());
  if (code->code == nullptr) {
    std::array<PCRE2_UCHAR, 200> reason{};
    pcre2_get_error_message(error, reason.data(), reason.size());
    throw Error(
        ExitCode::model,
        fmt::format("the regular expression is not supported: {}", reinterpret_cast<const char*>(reason.data())),
        setting);
  }
  code->is_native = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;  // else matching is slower, and the same
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

/// A match that begins at [from, last].
int Regex::match(std::string_view text, std::size_t from, std::size_t last, Scratch& scratch) const {
  const auto& state = *scratch.state_;
  pcre2_set_offset_limit(state.context, last);
  const auto match = code_->is_native ? pcre2_jit_match : pcre2_match;  // the first spares checks of its arguments
  return match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_NO_UTF_CHECK,
               state.data, state.context);
}

/// PCRE2 limits what it does from one begin of a match; how many begins it tries, and how often it is called, is
/// limited here. So a long search is cut into parts that take little time each.
std::optional<TextRange> Regex::find(std::string_view text, std::size_t from, Scratch& scratch) const {
  constexpr std::size_t kFewest = 32, kMost = 64 << 10;
  constexpr int kCallsBetween = 16;
  auto& state = *scratch.state_;
  if (state.text_bytes < 0) scratch.begin_text(text.size());
  if (++state.calls % kCallsBetween == 0) state.check_time(setting_);
  int found = PCRE2_ERROR_NOMATCH;
  double before_s = 0;
  for (std::size_t begins = kFewest; found == PCRE2_ERROR_NOMATCH && from <= text.size();) {
    const std::size_t last = std::min(text.size(), from + begins);
    found = match(text, from, last, scratch);
    if (found != PCRE2_ERROR_NOMATCH || last == text.size()) break;
    for (from = last + 1; from < text.size() && is_utf8_continuation(text[from]);) ++from;
    state.check_time(setting_);
    const double now_s = seconds_of(CLOCK_MONOTONIC_COARSE);
    const bool is_slow = before_s > 0 && now_s - before_s > kSlowSeconds;
    begins = is_slow ? std::max(kFewest, begins / 2) : std::min(kMost, 2 * begins);
    before_s = now_s;
  }
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
