#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/shard/schedule/exec_order.h"
#include "runtime/shard/schedule/unit_states.h"

namespace zs {

/// Mode of a micro-batch: it says which recorded order is followed.
enum class Mode : std::uint8_t { train, eval };
inline constexpr int kModes = 2;

/// Limits on how far units are gathered ahead and freed later, in any scheme.
struct PrefetchOptions {
  int prefetch = 1;  ///< units gathered ahead of the one that runs
  /// Units, beside the root and those that stay gathered, whose full parameters may exist at once on the device: in
  /// use, or gathered ahead. Where it is less than prefetch + 1, less is gathered ahead. Where it is more, a buffer
  /// goes back later than compute is done with it, so that gathers, which the host asks for long before, may run
  /// further ahead of compute than the prefetch says. 0: prefetch + 1, and explicit lists of any length.
  int limit = 0;
  int max_reductions_in_flight = 2;  ///< full gradient buffers under reduction while the next one is filled
  /// Root and last unit stay unsharded from forward to backward, root and first one from one micro-batch to the next of
  /// the same step.
  bool keep_root_unsharded = true;
  /// In backward the next units are gathered after a unit's backward, not before it.
  bool prefetch_after_backward = false;
  /// A unit's reduction is asked for when the next unit's backward begins, or at the end.
  bool delays_reductions = false;
  /// A unit without backward is reduced all the same, as zeros; ranks agree on which units those are.
  bool reduces_unused = false;
};

/// Decisions that the cut of a unit makes on when it is gathered and reduced.
struct UnitSchedule {
  bool reshard_after_forward = true;
  bool reduce_every_micro_batch = true;
  bool keep_unsharded = false;  ///< the unit stays unsharded up to the last micro-batch
  enum class Kept : std::uint8_t {
    none,
    of_gather,   ///< the first gather leaves a shard of the small group, for the rest of the step
    of_forward,  ///< a unit that is resharded after forward leaves one, for its backward
  };
  Kept kept = Kept::none;
  enum class Final : std::uint8_t { none, last, every };
  Final final_step = Final::none;  ///< micro-batches after whose reductions `finish` follows
};

/// The pure state machine of sharding: hooks go in, actions come out. It touches no device and no communicator. Unit 0
/// is the root. Prefetch follows the recorded order; before there is one, each unit is gathered when it is needed. A
/// unit that deviates from the order is gathered on demand and noted in `deviations`. A hook that comes in an illegal
/// state is a UsageError, which names unit, state and operation.
class Scheduler {
 public:
  static constexpr int kRoot = 0;

  /// `schedule`: of every unit that set_schedule() says nothing of.
  Scheduler(std::vector<std::string> unit_names, const PrefetchOptions& options, const UnitSchedule& schedule = {});

  /// `is_last`: the last micro-batch of a step (or of a validation). Gradients are reduced in it even when not every
  /// micro-batch does so, and no unit stays unsharded after it, for the optimizer comes next.
  void begin_micro_batch(Mode mode, bool is_last);
  std::vector<Action> before_forward(int unit);
  std::vector<Action> after_forward(int unit);
  /// The unit's forward runs again, within the backward of what came after it: it is unsharded and stays so until its
  /// own backward is complete. No part of the recorded order.
  std::vector<Action> before_recompute(int unit);
  /// Begins the unit's backward: call before its first backward work; later calls in the same micro-batch ask for
  /// nothing.
  std::vector<Action> before_backward(int unit);
  /// All gradients of the unit are enqueued.
  std::vector<Action> after_backward(int unit);
  /// Reshards what is left (mis-aimed prefetches, units without backward), reduces what is left, and after the last
  /// micro-batch releases every gradient buffer.
  std::vector<Action> end_micro_batch();
  /// Unshard and reshard by hand, within a micro-batch or outside: start a gather, wait for it, free the unit. Nothing
  /// where that is so already; a unit in its own forward or backward is not freed.
  std::vector<Action> start_unshard(int unit);
  std::vector<Action> wait_unshard(int unit);
  std::vector<Action> reshard(int unit);
  /// Abandons the open micro-batch after an exception; everything is back to sharded. Whole gradients that it has added
  /// to go, and sums that it has reduced to; those of earlier micro-batches alone stay. `of_step`: they go too.
  std::vector<Action> abandon(bool of_step = false);
  /// Units that the open micro-batch has reduced.
  std::vector<int> reduced() const;
  /// True if the open micro-batch has begun to add to a whole gradient of the unit that holds earlier micro-batches'.
  bool is_mixed(int unit) const { return in_micro_batch_ && unit_at(unit).had_gradient && unit_at(unit).is_added_to; }
  /// True if the unit's forward has begun in the open micro-batch.
  bool has_run(int unit) const { return unit_at(unit).has_run; }

  const ExecOrder& order(Mode mode) const { return orders_[static_cast<int>(mode)]; }
  void set_order(Mode mode, ExecOrder order) {
    orders_[static_cast<int>(mode)] = std::move(order);
    ++changes_;
  }
  UnitState state(int unit) const { return unit_at(unit).state; }
  ShardState shard_state(int unit) const { return unit_at(unit).shard; }
  GradState grad_state(int unit) const { return unit_at(unit).grad; }
  /// Sets the units that are gathered ahead when `unit` runs, instead of those that follow it in the recorded order;
  /// empty: none.
  void set_prefetch(ExecOrder::Phase phase, int unit, std::vector<int> targets);
  /// Action on one unit's full parameter after its forward in training, instead of what the options say.
  enum class AfterForward : std::uint8_t { stay, free, keep_secondary_shard };
  void set_after_forward(int unit, AfterForward what) {
    unit_at(unit).after_forward = what;
    ++changes_;
  }
  /// Sets what one unit's cut decides, instead of what the options say.
  void set_schedule(int unit, const UnitSchedule& schedule) {
    unit_at(unit).schedule = schedule;
    ++changes_;
  }
  /// Parks accumulating gradients of a unit on the host between micro-batches: whole ones that are not reduced yet,
  /// and, where it `has_sum` beside the master's gradient, that until its second step. Not the last unit's in forward
  /// and the first one's in backward, which are needed at once, nor before an order is recorded.
  void set_parks(int unit, bool parks, bool has_sum) {
    unit_at(unit).parks = parks;
    unit_at(unit).parks_sum = parks && has_sum;
  }
  /// A frozen unit is gathered and freed in backward and has no gradient.
  void set_frozen(int unit, bool is_frozen) { unit_at(unit).is_frozen = is_frozen; }
  /// Switches of one unit, for micro-batches that begin from now on. Without `syncs` its gradients go on accumulating,
  /// as where set_reduces() says so of all. Without `all_reduces` the second step of its reduction waits for a later
  /// micro-batch: never the last of a step.
  void set_syncs(int unit, bool syncs) { set(unit, &Unit::syncs, syncs); }
  void set_all_reduces(int unit, bool all_reduces) { set(unit, &Unit::all_reduces, all_reduces); }
  /// Says if the full parameter is freed after the unit's backward, before a step's last micro-batch; none: as the
  /// schedule says.
  void set_reshard_after_backward(int unit, std::optional<bool> reshards) {
    set(unit, &Unit::reshards_after_backward, reshards);
  }
  /// Says if parameters are gathered for the unit's backward: without, no op of it may need them there.
  void set_unshards_in_backward(int unit, bool unshards) { set(unit, &Unit::unshards_in_backward, unshards); }
  bool unshards_in_backward(int unit) const { return unit_at(unit).unshards_in_backward; }
  /// Says if micro-batches that begin from now on are reduced at all; without, gradients go on accumulating.
  void set_reduces(bool reduces) { reduces_ = reduces; }
  bool reduces() const { return reduces_; }
  /// True if this micro-batch's gradients of the unit are reduced in it.
  bool is_due(int unit) const {
    return is_due_ && mode_ == Mode::train && unit_at(unit).syncs &&
           (unit_at(unit).schedule.reduce_every_micro_batch || is_last_);
  }
  /// Number of changes so far to how units shall run, but for which are frozen and what is reduced: a number to
  /// compare.
  std::int64_t changes() const { return changes_; }
  SumState sum_state(int unit) const { return unit_at(unit).sum; }
  const std::string& name(int unit) const { return unit_at(unit).name; }
  int size() const { return static_cast<int>(units_.size()); }
  bool is_in_micro_batch() const { return in_micro_batch_; }
  /// Units that did not run when the recorded order said, since the last call.
  std::vector<std::string> take_deviations() { return std::exchange(deviations_, {}); }
  /// Units that were gathered ahead and did not run before their micro-batch ended, since the last call.
  std::vector<std::string> take_unused_gathers() { return std::exchange(unused_gathers_, {}); }

 private:
  struct Unit {
    std::string name;
    UnitSchedule schedule;
    UnitState state = UnitState::sharded;
    ShardState shard = ShardState::none;
    GradState grad = GradState::none;
    SumState sum = SumState::none;
    bool in_forward = false;
    bool in_backward = false;
    bool has_run = false;       // forward, in this micro-batch
    bool is_reduced = false;    // in this micro-batch
    bool had_gradient = false;  // when it began
    bool is_added_to = false;   // in it
    bool is_frozen = false, parks = false, parks_sum = false;
    bool syncs = true, all_reduces = true, unshards_in_backward = true;
    std::optional<bool> reshards_after_backward = {};
    std::optional<AfterForward> after_forward = {};
    std::array<std::optional<std::vector<int>>, 2> prefetch = {};  // by phase
  };

  const Unit& unit_at(int unit) const;
  Unit& unit_at(int unit);
  template <class Value>
  void set(int unit, Value Unit::*what, Value value) {
    if (unit_at(unit).*what == value) return;
    unit_at(unit).*what = value;
    ++changes_;
  }
  void check_all_reduces() const;
  void emit(std::vector<Action>& actions, Action::Kind kind, int unit);
  void gather(std::vector<Action>& actions, int unit);
  int in_flight() const;
  void free_used(std::vector<Action>& actions, int unit);
  void free_oldest_deferred(std::vector<Action>& actions);
  void unshard(std::vector<Action>& actions, int unit);
  void reshard(std::vector<Action>& actions, int unit);
  void prefetch(std::vector<Action>& actions, ExecOrder::Phase phase, int unit);
  void note_order(ExecOrder::Phase phase, int unit);
  void reduce(std::vector<Action>& actions, int unit);
  void reduce_rest(std::vector<Action>& actions, int unit);
  void reduce_delayed(std::vector<Action>& actions);
  void release_oldest(std::vector<Action>& actions);
  bool is_parked_between(int unit) const;
  void park(std::vector<Action>& actions, int unit);
  void reload_gradient(std::vector<Action>& actions, int unit);
  void reload_sum(std::vector<Action>& actions, int unit);
  void reload_ahead(std::vector<Action>& actions);
  void resume(std::vector<Action>& actions, int unit);
  bool is_recorded_end(int unit, bool is_last) const;
  bool stays_after_forward(int unit) const;
  bool keeps_secondary_shard(int unit) const;
  bool stays_after_backward(int unit) const;
  ExecOrder& order() { return orders_[static_cast<int>(mode_)]; }
  static std::string refusal(const Unit& unit, const char* operation);
  /// A hook that comes in an illegal state is its caller's mistake.
  [[noreturn]] static void refuse(const Unit& unit, const char* operation, const char* what_to_do);

  PrefetchOptions options_;
  std::vector<Unit> units_;
  std::array<ExecOrder, kModes> orders_;
  Mode mode_ = Mode::train;
  bool in_micro_batch_ = false, is_last_ = false;
  bool reduces_ = true, is_due_ = true;  // from now on; this micro-batch's gradients are reduced in it
  std::deque<int> reducing_;             // oldest first
  std::deque<int> deferred_;             // units whose buffers were set aside, oldest first
  std::int64_t changes_ = 0;
  std::optional<int> delayed_;  // unit whose gradients are complete, and whose reduction is not asked for
  std::vector<std::string> deviations_, unused_gathers_;
};

}  // namespace zs
