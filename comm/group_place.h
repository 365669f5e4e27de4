#pragma once

#include <algorithm>
#include <span>

#include "runtime/base/usage_error.h"

namespace zs {

/// Place of `rank` among a group's ranks, in a world of `size`. UsageError where it is none of them, one of them is no
/// rank of the world, or one is there twice.
inline int place_in_group(std::span<const int> ranks, int rank, int size) {
  for (const int r : ranks) {
    if (r < 0 || r >= size || std::count(ranks.begin(), ranks.end(), r) != 1)
      throw UsageError(fmt::format("a group with rank {}, in a world of {}", r, size),
                       "name ranks of the world, each of them once");
  }
  const auto self = std::find(ranks.begin(), ranks.end(), rank);
  if (self == ranks.end())
    throw UsageError(fmt::format("rank {} makes a group that it is not in", rank),
                     "make a group on the ranks that it names, and nowhere else");
  return static_cast<int>(self - ranks.begin());
}

}  // namespace zs
