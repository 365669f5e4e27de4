#include "model/nn/block_runs.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace zs {
namespace {

/// The best way to cut the blocks before some block.
struct Cut {
  int units = -1;  // -1: no way
  std::int64_t largest = 0;
  std::size_t last_begins = 0;

  bool is_better_than(const Cut& other) const {
    return units != other.units ? units > other.units : largest < other.largest;
  }
};

/// Length of a name without the number after it: "blocks." of "blocks.12".
std::size_t stem_length(const std::string& name) {
  const std::size_t last = name.find_last_not_of("0123456789");
  return last == name.npos ? 0 : last + 1;
}

}  // namespace

std::vector<std::size_t> merge_blocks(std::span<const std::int64_t> bytes, std::int64_t least) {
  ZS_CHECK(!bytes.empty() && least >= 0, "{} blocks in units of {} bytes", bytes.size(), least);
  std::vector<Cut> best(bytes.size() + 1);
  best[0].units = 0;
  for (std::size_t end = 1; end <= bytes.size(); ++end) {
    std::int64_t sum = 0;
    for (std::size_t begin = end; begin-- > 0;) {
      sum += bytes[begin];
      if (sum < least || best[begin].units < 0) continue;
      const Cut cut{best[begin].units + 1, std::max(best[begin].largest, sum), begin};
      if (cut.is_better_than(best[end])) best[end] = cut;
    }
  }
  if (best.back().units < 0) return {bytes.size()};
  std::vector<std::size_t> counts;
  for (std::size_t end = bytes.size(); end > 0; end = best[end].last_begins)
    counts.push_back(end - best[end].last_begins);
  std::reverse(counts.begin(), counts.end());
  return counts;
}

std::string name_of_blocks(const std::string& first, const std::string& last) {
  if (first == last) return first;
  const std::size_t stem = stem_length(first);
  const bool are_numbers =
      stem < first.size() && stem == stem_length(last) && first.compare(0, stem, last, 0, stem) == 0;
  return first + "-" + (are_numbers ? last.substr(stem) : last);
}

}  // namespace zs
