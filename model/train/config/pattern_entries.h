#pragma once

#include <string>
#include <vector>

#include "runtime/base/pattern_entry.h"
#include "runtime/shard/placement/unit_layout.h"

namespace zs {

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
