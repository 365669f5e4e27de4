#include "model/train/config/pattern_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace zs {
namespace {

std::vector<DimPattern> parse_all(const std::vector<std::string>& entries) {
  std::vector<DimPattern> patterns;
  for (const std::string& entry : entries) patterns.push_back(DimPattern::parse(entry));
  return patterns;
}

}  // namespace

DimPattern DimPattern::parse(const std::string& text) {
  constexpr const char* kKey = "shard.dims";
  constexpr const char* kExample = "*.weight=1";
  PatternEntry entry = PatternEntry::parse(kKey, text, kExample);
  DimPattern parsed{std::move(entry.pattern)};
  const char* const end = entry.value.data() + entry.value.size();
  const auto result = std::from_chars(entry.value.data(), end, parsed.dim);
  if (result.ec != std::errc() || result.ptr != end) PatternEntry::refuse(kKey, text, kExample);
  return parsed;
}

ChooseDim choose_dim(const std::vector<std::string>& entries) {
  if (entries.empty()) return {};
  return [patterns = parse_all(entries)](std::string_view name, const Shape&) {
    const auto found = std::find_if(patterns.begin(), patterns.end(),
                                    [&](const DimPattern& one) { return one.pattern.matches(name); });
    return found == patterns.end() ? 0 : found->dim;
  };
}

void check_matches(const std::vector<std::string>& entries, const std::vector<std::string>& names) {
  for (const DimPattern& one : parse_all(entries)) {
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return one.pattern.matches(name); }))
      throw Error(ExitCode::config, fmt::format("shard.dims: no parameter matches \"{}\"", one.pattern.text()), {},
                  fmt::format("the nearest names are {}", fmt::join(nearest_names(one.pattern.text(), names), ", ")));
  }
}

}  // namespace zs
