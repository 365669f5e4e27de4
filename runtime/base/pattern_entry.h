#pragma once

#include <string>

#include "runtime/base/name_pattern.h"

namespace zs {

/// Error(config) that begins with the key where the text is no pattern.
NamePattern pattern_of(const std::string& key, const std::string& text);

/// "PATTERN=VALUE", an entry of a key that says something of what has certain names. It ends at the last `=`.
struct PatternEntry {
  NamePattern pattern;
  std::string value;

  /// Error(config) where the text is no such entry; `key` and an `example` of its entries are for the message.
  static PatternEntry parse(const std::string& key, const std::string& text, const std::string& example);
  [[noreturn]] static void refuse(const std::string& key, const std::string& text, const std::string& example);
};

}  // namespace zs
