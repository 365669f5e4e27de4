#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/nccl_library.h"

/// What meets in one communicator of the NCCL for tests (fake_nccl.h), and what comes of it.
namespace zs::test {

/// What one rank gives to one operation of a communicator.
struct FakeOp {
  std::string kind;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t count = 0;
  int dtype = 0, number = 0;                    // number: reduction, root, or peer
  std::int64_t from_place = -1, to_place = -1;  // in registered memory; -1: not there
  std::size_t captured = 0;  // which of its rank's captured operations it is, from 1; 0: it is not captured

  /// Buffers are registered on all ranks or on none, and an operation is captured on all of them at once.
  bool goes_with(const FakeOp& other) const {
    return kind == other.kind && count == other.count && dtype == other.dtype && number == other.number &&
           (from_place < 0) == (other.from_place < 0) && (to_place < 0) == (other.to_place < 0) &&
           captured == other.captured;
  }
  /// Where what is alike on all ranks is: what is gathered, or added up.
  std::int64_t place() const { return kind == "reduce_scatter" ? from_place : to_place; }
};

struct FakeOperation {
  std::map<int, FakeOp> arrived;  // by rank
  std::map<int, std::shared_ptr<bool>> done;
};

/// A group of sends and receives of one rank.
struct FakeExchange {
  std::size_t open;
  std::shared_ptr<bool> done;
};
struct FakeLetter {
  FakeOp op;
  std::shared_ptr<FakeExchange> exchange;
};
/// What goes from one rank to another.
struct FakePair {
  std::deque<FakeLetter> sent, received;
};

struct FakeSplit {
  int color, key, rank;
  ncclComm** made;
};

/// The ranks of a communicator.
struct FakeClique {
  explicit FakeClique(int ranks)
      : members(static_cast<std::size_t>(ranks)), next(members.size()), captured(members.size()) {}
  std::vector<ncclComm*> members;     // null: has not come
  std::vector<std::size_t> next;      // collectives begun, by rank
  std::vector<std::size_t> captured;  // operations, by rank
  std::deque<FakeOperation> meetings;
  std::map<std::pair<int, int>, FakePair> pairs;
  std::vector<std::pair<int, std::shared_ptr<bool>>> enqueued;  // (rank, done)
  std::vector<FakeSplit> splits;                                // of the round that is under way
  int rounds = 0;                                               // of splits, done
  int registered = 0, displaced = 0;  // collectives on registered memory, and those that have it at different places

  bool is_complete() const {
    return std::none_of(members.begin(), members.end(), [](const ncclComm* member) { return member == nullptr; });
  }
};

/// A rank has come to its next collective operation: it is `done` when all have, with the same.
void arrive(FakeClique& clique, int rank, const FakeOp& op, const std::shared_ptr<bool>& done);
/// A rank has come to a group of sends and receives.
void arrive(FakeClique& clique, int rank, const std::vector<FakeOp>& ops,
            const std::shared_ptr<FakeExchange>& exchange);

}  // namespace zs::test
