#pragma once

#include <array>
#include <cstdint>

namespace zs {

enum class CommOp : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, barrier };
inline constexpr int kCommOps = 6;
const char* name_of(CommOp op);

/// Data that one rank sent through one communicator, by operation: counted when it is enqueued, and as the operation's
/// definition needs it, not as one transport or the other moves it. Of n ranks, each sends its shard to the n - 1
/// others in an all-gather; the others' n - 1 slices in a reduce-scatter; both, with equal parts of the data, in an
/// all-reduce. A value.
struct CommTraffic {
  struct Count {
    std::int64_t operations = 0, sent_bytes = 0;
    bool operator==(const Count&) const = default;
  };
  std::array<Count, kCommOps> counts{};

  const Count& of(CommOp op) const { return counts[static_cast<std::size_t>(op)]; }
  void add(CommOp op, std::int64_t sent_bytes) {
    Count& count = counts[static_cast<std::size_t>(op)];
    ++count.operations;
    count.sent_bytes += sent_bytes;
  }
  void add(const CommTraffic& other) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      counts[i].operations += other.counts[i].operations;
      counts[i].sent_bytes += other.counts[i].sent_bytes;
    }
  }
  std::int64_t sent_bytes() const {
    std::int64_t sum = 0;
    for (const Count& count : counts) sum += count.sent_bytes;
    return sum;
  }
  /// Difference between this and `earlier`.
  CommTraffic since(const CommTraffic& earlier) const {
    CommTraffic rest = *this;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      rest.counts[i].operations -= earlier.counts[i].operations;
      rest.counts[i].sent_bytes -= earlier.counts[i].sent_bytes;
    }
    return rest;
  }
};

}  // namespace zs
