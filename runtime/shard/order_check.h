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

/// Watches that all ranks communicate alike, and have the same units, where messages alone would not tell: they carry a tag, but
/// only within the group that exchanges them. Keeps a running hash of all units, gathers and reductions since the start, compared once a
/// step by one all-reduce of 16 bytes on the compute stream, and their lists, which are exchanged only when the hashes differ. Owned by a
/// ShardedRuntime; one host thread uses it.
class OrderCheck {
 public:
  explicit OrderCheck(Executor& executor);

  void note(const std::vector<Action>& actions, Mode mode);
  /// What is communicated of a unit: dtypes, wires, elements, how it is cut, the sizes of its groups. Ranks of different groups may differ
  /// in any of it without a message that tells.
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
  /// After an OrderMismatch, on every rank: collective, blocks. The same with the first that differs of units, then of operations, and the
  /// ranks that it differs on: "unit blocks.3, parameters: rank 0 f32, rank 2 bf16", "operation 918: rank 0 gather(blocks.3) f32, rank 2
  /// gather(blocks.4) f32".
  [[noreturn]] void explain(OrderMismatch mismatch);

 private:
  std::int64_t close_step();
  using List = std::vector<std::int64_t>;  // dtype, mode, kind and unit of each operation; or the facts of each unit
  std::int64_t entry_of(const Action& action, Mode mode) const;
  std::string text_of(std::int64_t entry) const;
  std::string unit_name(std::size_t unit) const;
  std::vector<List> exchange(const List& own);
  std::vector<std::int64_t> gather(const std::vector<std::int64_t>& own);
  /// Calls found(place, rank, value on rank 0, value on that rank), which throws, where the lists first differ.
  template <class Found>
  void find_difference(const List& own, const Found& found);

  Executor& executor_;
  Memory hashes_;  // i64: the hash and its complement; their maxima agree when all are equal
  std::uint64_t hash_ = 0;
  std::int64_t steps_ = 0;
  bool defers_ = false;
  List units_;
  List list_;                  // since the last comparison
  std::deque<List> compared_;  // of the last comparisons, newest first
};

}  // namespace zs
