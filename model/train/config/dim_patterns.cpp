#include "model/train/config/dim_patterns.h"

#include <fnmatch.h>

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
  const std::size_t sign = text.rfind('=');
  DimPattern parsed;
  const char* const end = text.data() + text.size();
  const auto result = sign == std::string::npos || sign == 0
                          ? std::from_chars_result{nullptr, std::errc::invalid_argument}
                          : std::from_chars(text.data() + sign + 1, end, parsed.dim);
  if (result.ec != std::errc() || result.ptr != end)
    throw Error(ExitCode::config, fmt::format("shard.dims has \"{}\"", text), {},
                "write \"PATTERN=DIM\", such as \"*.weight=1\"");
  parsed.pattern = text.substr(0, sign);
  return parsed;
}

bool DimPattern::matches(std::string_view name) const {
  return fnmatch(pattern.c_str(), std::string(name).c_str(), 0) == 0;
}

ChooseDim choose_dim(const std::vector<std::string>& entries) {
  if (entries.empty()) return {};
  return [patterns = parse_all(entries)](std::string_view name, const Shape&) {
    const auto found =
        std::find_if(patterns.begin(), patterns.end(), [&](const DimPattern& one) { return one.matches(name); });
    return found == patterns.end() ? 0 : found->dim;
  };
}

void check_matches(const std::vector<std::string>& entries, const std::vector<std::string>& names) {
  for (const DimPattern& one : parse_all(entries)) {
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return one.matches(name); }))
      throw Error(ExitCode::config, fmt::format("shard.dims: no parameter matches \"{}\"", one.pattern), {},
                  fmt::format("a name is {}", names.at(names.size() / 2)));
  }
}

}  // namespace zs
