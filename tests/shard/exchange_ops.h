#pragma once

#include <set>
#include <string>

namespace zs::test {

/// The ops of experts that are dealt over ranks, but those that exchange anything: those that repeat are of ranks
/// that exchange nothing.
inline const std::set<std::string>& exchange_ops() {
  static const std::set<std::string> names{"count_rows",
                                           "sort_arrivals",
                                           "order_by_expert",
                                           "order_by_rank",
                                           "select_rows",
                                           "gather_selected",
                                           "combine_selected_backward",
                                           "expert_swiglu",
                                           "expert_swiglu_backward",
                                           "repeat",
                                           "repeat_counts"};
  return names;
}

}  // namespace zs::test
