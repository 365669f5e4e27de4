#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/world.h"
#include "runtime/shard/execute/flat_parameter.h"
#include "runtime/shard/schedule/scheduler.h"
#include "runtime/tensor/context.h"

namespace zs {

class Executor;
class InlineStream;

/// The ranks have not asked for the same communication in the same order, or do not train in the same way: what differs
/// first is named, with the values of two ranks. Every rank throws it alike, from its next synchronize; what was
/// enqueued after the comparison, the optimizer's step first of all, has not run.
class OrderMismatch final : public Error {
 public:
  /// `what`: "the ranks disagree on ... in step 3, ...". `step`: comparisons before this one.
  OrderMismatch(std::int64_t step, const std::string& what, const char* what_to_do);
  /// Error about the order of communication; `detail` is where in the step the ranks part.
  explicit OrderMismatch(std::int64_t step, const std::string& detail = {});
  std::int64_t step() const { return step_; }

 private:
  std::int64_t step_;
};

/// Watches that all ranks communicate alike, have the same units, and train in the same way, where messages alone would
/// not tell: they carry a tag, but only within the group that exchanges them. Keeps a running hash of all units,
/// gathers and reductions since the start, compared once a step by one all-reduce of 16 bytes on the compute stream,
/// with a hash of the settings and of which parameters are trained; only when the hashes differ the ranks' hosts
/// exchange what they were made of, to name the first difference. Owned by an Executor; one host thread uses it.
class OrderCheck {
 public:
  /// Collective.
  OrderCheck(Executor& executor, World& world);
  ~OrderCheck();
  OrderCheck(const OrderCheck&) = delete;
  OrderCheck& operator=(const OrderCheck&) = delete;

  void note(const std::vector<Action>& actions, Mode mode);
  /// Notes how a unit is communicated: dtypes, comm dtypes, elements, how it is cut, the sizes of its groups. Ranks of
  /// different groups may differ in any of it without a message that tells.
  void note(const FlatParameter& unit);
  /// An UnshardScope: it was entered, with options that are a number; what it has of a unit became the weights, of
  /// every rank its own part or, of all, what one rank has; it was left, so that a comparison is due.
  void note_enter(int unit, std::int64_t options);
  void note_write_back(int unit);
  void note_scatter(int unit);
  void note_leave() { is_due_ = true; }
  /// Notes a setting that is no communication and decides what is trained all the same: "learning rate", "0.01". Holds
  /// until it is said anew.
  void set(std::string_view setting, std::string value);

  /// A step's last micro-batch has ended: the next `compare_if_due` compares.
  void close_step() { is_due_ = has_ended_ = true; }
  /// Compares before the reduced gradients are used, or whatever else comes after a step. Enqueued on compute; nothing
  /// on one rank, or where no step has ended, and no scope was left, since the last time.
  void compare_if_due();
  /// While it holds, a comparison enqueues nothing: the step is captured, and whoever does that compares `hash` between
  /// the hosts before any of it runs, and says what came of it by settle().
  void defer(bool defers) { defers_ = defers; }
  bool defers() const { return defers_; }
  /// Hash of all that was noted since the start, and of the settings as they are.
  std::uint64_t hash() const;
  /// The hosts have compared their hashes before a step that is replayed, of which nothing is noted. Throws what
  /// settle() throws.
  void compare_replayed(bool are_equal);
  /// Settles the last comparison, on every rank alike. Error(ranks_disagree), OrderMismatch, where the hashes differ.
  /// Collective then.
  void settle(bool are_equal);
  /// A micro-batch begins; `forget`: it was abandoned, and what was noted since it began is not to be compared.
  void begin_micro_batch();
  void forget();

 private:
  using List = std::vector<std::int64_t>;
  struct Setting {
    std::string name, value;
  };
  struct Names {
    std::vector<std::string> units, parameters;  // the latter unit by unit
    std::string unit(std::size_t number) const {
      return number < units.size() ? units[number] : std::to_string(number);
    }
  };
  /// Facts that a comparison compares, kept until it is over. The stream that finds a difference names it, whatever the
  /// host does meanwhile.
  struct Compared {
    std::int64_t step = 0;  // step that ended last, or has not ended
    std::shared_ptr<const Names> names;
    List units;                     // the facts of each
    std::vector<Setting> settings;  // in the order in which they were first said
    List trained;                   // for each parameter, unit by unit: is it trained
    List operations;                // dtype, mode, kind and unit of each since the last comparison
  };
  std::shared_ptr<const Compared> take_step();
  List trained() const;
  std::int64_t entry_of(const Action& action, Mode mode) const;
  void add_operation(std::int64_t entry, int unit);
  std::shared_ptr<const Names> names();
  static std::string text_of(std::int64_t entry, const Names& names);
  /// Collective over the hosts; blocks. Throws the OrderMismatch of the first difference.
  [[noreturn]] void explain(const Compared& compared);
  void explain_units(const Compared& compared);
  void explain_settings(const Compared& compared);
  struct Difference {
    std::int64_t name;  // hash of a setting's
    std::size_t rank;   // that differs from rank 0
  };
  std::optional<Difference> find_setting(const std::vector<Setting>& settings);
  std::vector<List> exchange(const List& own);
  List gather(const List& own);
  /// Calls found(place, rank, value on rank 0, value on that rank), which throws, where the lists first differ.
  template <class Found>
  void find_difference(const List& own, const Found& found);

  Executor& executor_;
  std::unique_ptr<Communicator> hosts_;        // null: one rank
  std::unique_ptr<InlineStream> host_stream_;  // theirs
  Memory hashes_;  // i64: the hash and its complement; their maxima agree when all are equal
  std::uint64_t hash_ = 0;
  std::int64_t steps_ = 0;
  bool defers_ = false, is_due_ = false, has_ended_ = false;  // the last: a step, since the last comparison
  List units_, operations_;
  std::vector<Setting> settings_;
  std::shared_ptr<const Names> names_;  // made when the first step is compared
  struct {
    std::uint64_t hash = 0;
    std::size_t operations = 0;
  } before_micro_batch_;
  std::shared_ptr<const Compared> last_;
};

}  // namespace zs
