#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace zs {

/// Table of what every rank of a group sends to every other in an exchange of parts of any size, in elements: alike on
/// all ranks. A rank's parts lie one after the other in the order of their receivers, what it gets in the order of the
/// senders. A value.
class PartTable {
 public:
  /// `said`: of each rank, what it sends to each, then what it expects of each. Throws Error(ranks_disagree) where
  /// these differ; `what`
  /// ("all_to_all_v(experts)") names the operation there.
  PartTable(std::span<const std::int64_t> said, int ranks, std::string_view what);

  int ranks() const { return ranks_; }
  std::int64_t count(int from, int to) const { return sent_begin(from, to + 1) - sent_begin(from, to); }
  /// Offset of that part in what `from` sends; to == ranks: the end.
  std::int64_t sent_begin(int from, int to) const { return sent_[index(from, to)]; }
  /// Offset of that part in what `to` gets.
  std::int64_t received_begin(int to, int from) const { return received_[index(to, from)]; }
  /// All that the rank which sends most sends.
  std::int64_t most_sent() const { return most_sent_; }

 private:
  std::size_t index(int rank, int other) const { return static_cast<std::size_t>(rank * (ranks_ + 1) + other); }

  int ranks_;
  std::vector<std::int64_t> sent_, received_;  // [rank][other, and the end]
  std::int64_t most_sent_ = 0;
};

}  // namespace zs
