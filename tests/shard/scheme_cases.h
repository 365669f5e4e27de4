#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/shard/placement/scheme.h"

namespace zs::test {

/// One way to train, for the tests that run all of them.
struct SchemeCase {
  SchemeOptions scheme;
  int ranks = 1, prefetch = 1, micro_batches = 1;
};

/// A scheme by name, for so many ranks: its small groups are of half of them, of two for `small`.
inline SchemeOptions scheme_of(const std::string& name, int ranks) {
  const int half = std::max(1, ranks / 2), two = std::min(2, ranks);
  if (name == "zero3 once") return {.strategy = Strategy::zero3, .reduce_every_micro_batch = false};
  if (name == "zero3 k") return {.strategy = Strategy::zero3, .reshard_after_forward = Reshard::over(half)};
  if (name == "zero3 small k") return {.strategy = Strategy::zero3, .reshard_after_forward = Reshard::over(two)};
  if (name == "shard_grad_op each") return {.strategy = Strategy::shard_grad_op};
  if (name == "shard_grad_op") return {.strategy = Strategy::shard_grad_op, .reduce_every_micro_batch = false};
  if (name == "hsdp") return {.strategy = Strategy::hsdp, .group_size = half};
  if (name == "hsdp small each")
    return {.strategy = Strategy::hsdp, .group_size = two, .all_reduce_every_micro_batch = true};
  if (name == "hsdp k")
    return {.strategy = Strategy::hsdp,
            .group_size = ranks < 8 ? ranks : half,
            .reshard_after_forward = Reshard::over(two)};
  if (name == "nested once")
    return {.strategy = Strategy::nested, .group_size = half, .reduce_every_micro_batch = false};
  if (name == "nested") return {.strategy = Strategy::nested, .group_size = half};
  if (name == "nested small") return {.strategy = Strategy::nested, .group_size = two};
  return {.strategy = strategy_of(name)};
}

inline const std::vector<std::string>& scheme_names() {
  static const std::vector<std::string> names = {
      "ddp",           "zero1",           "zero2",         "zero3",
      "zero3 once",    "zero3 k",         "zero3 small k", "shard_grad_op each",
      "hsdp",          "hsdp small each", "nested once",   "nested",
      "shard_grad_op", "nested small",    "hsdp k"};
  return names;
}

/// One of each kind, where a test needs no more.
inline const std::vector<std::string>& main_schemes() {
  static const std::vector<std::string> names = {"zero3", "zero3 once", "zero2", "zero1", "ddp", "hsdp", "nested"};
  return names;
}

/// Every scheme at every number of ranks; prefetch, accumulation and resharding so that any two values of any two of
/// these meet.
inline std::vector<SchemeCase> scheme_cases(const std::string& name, const std::vector<int>& ranks) {
  std::vector<SchemeCase> cases;
  int number = static_cast<int>(std::find(scheme_names().begin(), scheme_names().end(), name) - scheme_names().begin());
  for (std::size_t i = 0; i < ranks.size(); ++i, ++number) {
    SchemeCase one{scheme_of(name, ranks[i]), ranks[i], number % 3, (number / 2) % 2 == 0 ? 4 : 1};
    if (one.scheme.reshard_after_forward.is_all()) one.scheme.reshard_after_forward = number % 4 != 1;
    cases.push_back(one);
  }
  return cases;
}

}  // namespace zs::test
