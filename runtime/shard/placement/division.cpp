#include "runtime/shard/placement/division.h"

#include <cmath>

#include "runtime/base/check.h"
#include "runtime/base/usage_error.h"

namespace zs {

Division::Factors Division::factors(int ranks) const {
  ZS_CHECK(ranks >= 1, "{} ranks", ranks);
  const bool is_custom = rule == Rule::custom || rule == Rule::custom_last;
  if (is_custom && !(std::isfinite(factor) && factor > 0))
    throw UsageError(fmt::format("Division: gradients divided by {}", factor), "give a number above 0");
  switch (rule) {
    case Rule::none: return {};
    case Rule::mean: return {1, static_cast<float>(ranks)};
    case Rule::split_root: {
      int before = 1;  // the power of two nearest to the square root, as factors go
      while (2 * before * before <= ranks) before *= 2;
      return {static_cast<float>(before), static_cast<float>(ranks) / static_cast<float>(before)};
    }
    case Rule::custom: return {factor, 1};
    case Rule::custom_last: return {1, factor};
  }
  return {};
}

}  // namespace zs
