#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zs {

/// A pattern of dotted names: of modules, units or parameters. It matches a whole name, case and all.
///
///     *      any characters, dots too, or none          "blocks.*", "*.bias"
///     ?      one character, a dot too
///     {*}    an integer: one or more digits             "blocks.{*}.mlp"
///     {a-b}  an integer from a to b, both included      "blocks.{0-11}"
///
/// Everything else stands for itself, a brace that is never closed too. Error(config) where braces hold anything else,
/// or where {a-b} touches what may be a digit as well ("*{0-3}", "{1-2}{3-4}"): it would not say which digits count.
class NamePattern {
 public:
  explicit NamePattern(std::string text);

  bool matches(std::string_view name) const;
  const std::string& text() const { return text_; }

 private:
  struct Part {
    enum class Kind : std::uint8_t { literal, one, any, integer, range };
    Kind kind;
    char literal = 0;
    std::uint64_t low = 0, high = 0;

    bool may_be_digit() const;
    bool takes(std::string_view digits) const;
  };

  Part braces(std::string_view content) const;
  void check_range(std::size_t part) const;
  [[noreturn]] void refuse(const std::string& what, const std::string& what_to_do) const;

  std::string text_;
  std::vector<Part> parts_;
};

/// Levenshtein's distance: insertions, deletions and replacements.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The `count` names that are most like a pattern, the nearest first: "blocks.{*}.mlp" of "blocks.0.mlp",
/// "blocks.1.mlp"..., as integers between dots are left open.
std::vector<std::string> nearest_names(std::string_view pattern, const std::vector<std::string>& names,
                                       std::size_t count = 3);

}  // namespace zs
