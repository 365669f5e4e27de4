#pragma once

#include <string>
#include <vector>

#include "runtime/base/name_pattern.h"
#include "runtime/shard/placement/unit_layout.h"

namespace zs {

/// Error(config) that begins with the key where the text is no pattern.
NamePattern pattern_of(const std::string& key, const std::string& text);

/// "PATTERN=VALUE", an entry of a key that says something of what has certain names. It ends at the last `=`.
struct PatternEntry {
  NamePattern pattern;
  std::string value;

  /// Error(config) where the text is no such entry; `key` and an `example` of its entries are for the message.
  static PatternEntry parse(const std::string& key, const std::string& text, const std::string& example);
};

/// One entry of shard.dims, "PATTERN=DIM": parameters whose name matches the pattern are sharded on the dim.
struct DimPattern {
  NamePattern pattern;
  int dim = 0;

  /// Error(config) where the text is no such entry.
  static DimPattern parse(const std::string& text);
};

/// The first entry that matches a name says its dim; the others have the first dim. None: no choice.
ChooseDim choose_dim(const std::vector<std::string>& entries);

/// Error(config) where an entry matches none of the model's parameters.
void check_matches(const std::vector<std::string>& entries, const std::vector<std::string>& names);

}  // namespace zs
