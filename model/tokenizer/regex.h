#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace zs {

struct TextRange {
  std::size_t begin = 0, end = 0;
  friend bool operator==(const TextRange&, const TextRange&) = default;
};

/// A regular expression of tokenizer.json, which is written for Oniguruma, run by PCRE2's just-in-time compiler over
/// UTF-8. What the two understand differently (white space, word characters, scripts) is rewritten, and what cannot be
/// is refused. Immutable.
class Regex {
 public:
  /// Scratch memory that one thread matches with.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    /// Begins a text of so many bytes: sets what its steps may take (ReaderLimits).
    void begin_text(std::size_t bytes);
    /// Counts bytes that a step makes of the text. Error(model), which names the step, where that is too much.
    void grow(std::size_t bytes, const std::string& step);

   private:
    friend class Regex;
    struct State;
    std::unique_ptr<State> state_;
  };

  /// `setting` names it in errors. Throws Error(model) for a pattern that is invalid or not supported.
  explicit Regex(const std::string& pattern, const std::string& setting);
  /// One that finds exactly `text`.
  static Regex literal(std::string_view text, const std::string& setting);

  const std::string& setting() const { return setting_; }
  /// The first match that begins at `from` or later. `text` is valid UTF-8. Throws Error(model) when the pattern takes
  /// more memory, steps or time than any sensible one.
  std::optional<TextRange> find(std::string_view text, std::size_t from, Scratch& scratch) const;

  /// Calls `each(range)` for every match from left to right. An empty match right after another match is passed over.
  template <class Each>
  void find_all(std::string_view text, Scratch& scratch, const Each& each) const {
    std::optional<std::size_t> last_end;
    for (std::size_t from = 0; from <= text.size();) {
      const auto found = find(text, from, scratch);
      if (!found) return;
      if (found->begin == found->end && last_end == found->end) {
        from += from < text.size() ? char_length(text[from]) : 1;
        continue;
      }
      last_end = from = found->end;
      each(*found);
    }
  }

 private:
  struct Code;
  static std::size_t char_length(char lead);
  int match(std::string_view text, std::size_t from, std::size_t last, Scratch& scratch) const;

  std::string setting_;
  std::shared_ptr<const Code> code_;
};

/// Translates the expression to PCRE2's syntax. Throws Error(model) that names what is not supported.
std::string translate_regex(std::string_view pattern, const std::string& setting);

}  // namespace zs
