#include "runtime/base/pattern_entry.h"

#include <fmt/format.h>

#include "runtime/base/check.h"

namespace zs {

NamePattern pattern_of(const std::string& key, const std::string& text) try {
  return NamePattern(text);
} catch (const Error& error) {
  throw Error(error.code(), fmt::format("{}: {}", key, error.what_happened()), {}, error.what_to_do());
}

void PatternEntry::refuse(const std::string& key, const std::string& text, const std::string& example) {
  throw Error(ExitCode::config, fmt::format("{} has \"{}\"", key, text), {},
              fmt::format("write \"PATTERN=VALUE\", such as \"{}\"", example));
}

PatternEntry PatternEntry::parse(const std::string& key, const std::string& text, const std::string& example) {
  const std::size_t sign = text.rfind('=');
  if (sign == std::string::npos || sign == 0 || sign + 1 == text.size()) refuse(key, text, example);
  return {pattern_of(key, text.substr(0, sign)), text.substr(sign + 1)};
}

}  // namespace zs
