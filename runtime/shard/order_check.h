#pragma once

#include <deque>
#include <string>
#include <vector>

#include "runtime/shard/executor.h"
#include "runtime/shard/scheduler.h"

namespace zs {

/// The ranks have not asked for the same communication in the same order. Every rank throws it alike, from its next synchronize; what was
/// enqueued after the comparison, the optimizer's step first of all, has not run.
class OrderMismatch final : public Error {
 public:
  /// `detail`: where in the step the ranks part, once that is known.
  explicit OrderMismatch(std::int64_t step, const std::string& detail = {});
  std::int64_t step() const { return step_; }  ///< comparisons before this one

 private:
  std::int64_t step_;
};

/// Watches that all ranks communicate alike, and cut their parameters alike, where messages alone would not tell: they carry a tag, but
/// only within the group that exchanges them. Keeps a running hash of all gathers and reductions since the start, compared once a step by
/// one all-reduce of 16 bytes on the compute stream, and their list, which is exchanged only when the hashes differ. Owned by a
/// ShardedRuntime; one host thread uses it.
class OrderCheck {
 public:
  explicit OrderCheck(Executor& executor);

  void note(const std::vector<Action>& actions, Mode mode);
  /// How a unit is cut, which the sizes of messages need not tell.
  void note(const FlatParameter& unit);
  /// After the last micro-batch of a step. Enqueued on compute; nothing on one rank.
  void compare();
  /// While it holds, compare() enqueues nothing: the step is captured, and whoever does that compares `hash` between the hosts before any
  /// of it runs, and says what came of it by settle().
  void defer(bool defers) { defers_ = defers; }
  /// Of all that was noted since the start.
  std::uint64_t hash() const { return hash_; }
  /// The hosts have compared their hashes before a step that is replayed, of which nothing is noted. Throws what settle() throws.
  void compare_replayed(bool are_equal);
  /// Of the last comparison, on every rank alike. Error(ranks_disagree), OrderMismatch, where the hashes differ.
  void settle(bool are_equal) const;
  /// What of a step is not to be compared: the micro-batch was abandoned.
  void forget();
  /// After an OrderMismatch, on every rank: collective, blocks. The same with the first operation that differs and the ranks that it
  /// differs on: "operation 918 of step 3: rank 0 gather(blocks.3), rank 2 gather(blocks.4)".
  [[noreturn]] void explain(OrderMismatch mismatch);

 private:
  std::int64_t close_step();
  using List = std::vector<std::int32_t>;  // mode, kind and unit of each operation
  std::string text_of(std::int32_t entry) const;
  std::vector<List> exchange(const List& own);
  std::vector<std::int64_t> gather(const std::vector<std::int64_t>& own);

  Executor& executor_;
  Memory hashes_;  // i64: the hash and its complement; their maxima agree when all are equal
  std::uint64_t hash_ = 0;
  std::int64_t steps_ = 0;
  bool defers_ = false;
  List list_;                  // since the last comparison
  std::deque<List> compared_;  // of the last comparisons, newest first
};

}  // namespace zs
