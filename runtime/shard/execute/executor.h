#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/shard/execute/deferred_updates.h"
#include "runtime/shard/execute/grad_reducer.h"
#include "runtime/shard/execute/order_check.h"
#include "runtime/shard/execute/scope_transfer.h"
#include "runtime/shard/execute/step_state.h"
#include "runtime/shard/execute/unsharder.h"
#include "runtime/shard/execute/write_check.h"
#include "runtime/shard/offload/host_link.h"
#include "runtime/shard/placement/division.h"
#include "runtime/shard/placement/placement.h"
#include "runtime/shard/schedule/scheduler.h"

namespace zs {

/// Freezing of a unit for good. Its weights are held once, in `format`, or in `dtype`; neither: as those of others.
struct Freeze {
  bool is_frozen = false;
  std::optional<DType> dtype = {};
  const FrozenFormat* format = nullptr;
};

/// Turns the scheduler's actions into work on streams: memory from pools, collectives, events, and the binding of
/// parameters to views. Owned by a ShardedRuntime; one host thread uses it. On return from every function: enqueued,
/// not done.
class Executor {
 public:
  /// Collective: makes the groups of the units' placement, where they have none of their own. Error(config) where the
  /// options of the layout do not go together, or the scheme does not go with the number of ranks. `zero_copy`: units
  /// whose shards the ranks can share in memory are unsharded without a copy.
  Executor(Context& context, World& world, const PlacementOptions& placement, LayoutOptions layout = {},
           bool zero_copy = true, GroupOptions groups = {});
  /// Waits for the streams: their work uses the arena.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Allocates the persistent shards and fills `master` with each parameter's initial values, drawn by (seed, name,
  /// element), so that they depend on nothing else. Whole parameters are bound to their values from now on.
  /// Error(config) where a parameter has not the dim that was chosen for it.
  void add_unit(std::string name, const std::vector<Parameter*>& parameters, std::uint64_t seed,
                const MixedPrecisionPolicy& precision) {
    add_unit(std::move(name), parameters, seed, precision, placements_.front());
  }
  void add_unit(std::string name, const std::vector<Parameter*>& parameters, std::uint64_t seed,
                const MixedPrecisionPolicy& precision, std::shared_ptr<const Placement> placement, Freeze freeze = {});
  /// Placement that is made from these options, alike on every rank; the units' own where the options are the same.
  /// Collective where it is new.
  std::shared_ptr<const Placement> placement(const PlacementOptions& options);
  /// Sets the mode of gathers from now on: parameters are those of an evaluation, or of training. Every unit whose
  /// gathered dtype changes must be sharded.
  void set_mode(bool is_evaluation);
  /// Says if gradients of the unit that begin from now on are those of several micro-batches.
  void set_accumulates(int unit, bool accumulates);
  void run(const std::vector<Action>& actions);

  /// Compute waits for every reduction so far, and divides what is left to divide: call once, before the gradient
  /// shards are read there. Where the ranks have not trained alike since the last time it is an OrderMismatch of every
  /// rank's next synchronize, and nothing that comes after it runs.
  void wait_reductions();
  /// Takes the gradient of one unit, which is complete (ShardedRuntime::on_reduced): compute waits for its reductions,
  /// as in wait_reductions, without comparing how the ranks have trained. Returns its gradient of the master shard, f32
  /// (held_elems).
  Buffer take_gradient(int unit);
  /// Compute has updated the unit's masters, which are not gathered any more before the step ends, and its gradient is
  /// done with.
  void updated_in_backward(int unit);
  /// Makes gradients transient: they are there from a unit's reduction until updated_in_backward. UsageError of `owner`
  /// where the masters cannot be updated in backward.
  void make_gradients_transient(std::string_view owner);
  bool has_transient_gradients() const { return !units_.empty() && units_.front().has_transient_grad; }
  /// Whoever has made them so is gone; they are always there again as soon as an optimizer keeps them.
  void end_transient_gradients();
  void keep_gradients();
  /// ShardedRuntime::on_reduced, until the number that it gives is forgotten.
  int on_reduced(std::function<void(int unit)> hook);
  void forget_hook(int number);
  bool has_reduced_hook() const { return !reduced_hooks_.empty(); }
  void report_reduced(int unit);
  /// A step's last micro-batch has ended: units with a gradient that were not reported, having had none in it.
  void report_rest();
  /// UsageError of `call` where a unit was updated in a step that has not ended.
  void check_no_update_is_open(std::string_view call) const;
  /// The step is abandoned: who was reported is forgotten. UsageError where it has updated weights already.
  void drop_reports();
  /// No later reduction starts before `event`: what is more urgent goes first.
  void hold_reductions(const Event& event);
  /// The master shards (and their compute copies) were written by compute work enqueued so far; the next gathers wait
  /// for it. Not within a step: what is unsharded, or kept for a gather, would be old.
  void masters_updated();
  /// Masters were written by work on any stream, which `done` follows; the next gathers wait for that, and not for
  /// compute, except those of zero-copy units.
  void masters_updated(const Event& done);
  /// UsageError where a unit is unsharded, or kept for a gather.
  void check_all_sharded() const;
  /// Compute waits until no rank reads this rank's shards any more. Before they are written otherwise than by AdamW,
  /// after `wait_reductions` right after a step's last micro-batch, whose own communication on compute says the same,
  /// or by `write_back`. Collective; nothing where no unit is zero-copy.
  void wait_readers();
  /// Shards in shared memory count as not yet written, as of what compute was given so far: after an error the
  /// operation that said otherwise may have been skipped.
  void forget_published();
  /// True if the weights are those that add_unit has drawn.
  bool has_initial_weights() const { return has_initial_weights_; }
  /// Sets the seed of random rounding from now on; `draws`: the weights are drawn anew from it. Between steps, after
  /// `wait_readers`.
  void set_seed(std::uint64_t seed, bool draws);
  /// The host filled the master shards while the device was idle: their compute copies follow, and the next gathers
  /// wait for those. `are_new`: they come from outside, so that replicas are compared again.
  void masters_loaded(bool are_new = true);
  /// Updates that are deferred to the next forward. Settle them before you read or write masters, moments or gradients
  /// where they are kept.
  DeferredUpdates& deferred_updates() { return deferred_updates_; }
  /// Link by which shards that the host keeps come and go.
  HostLink& link() { return link_; }
  /// Services for an UnshardScope: what moves whole units, and what looks at what is written there.
  ScopeTransfer& transfer() { return transfer_; }
  WriteCheck& write_check() { return write_check_; }
  /// The masters of a unit, which is sharded, are written by compute work between the two. `with_others`: collective,
  /// and needed where the unit is zero-copy: once no rank reads them any more.
  void begin_write(FlatParameter& unit, bool with_others);
  void end_write(FlatParameter& unit);
  /// Compute waits for every reduction so far, in the middle of a step: sums stay undivided.
  void wait_sums(FlatParameter& unit);
  /// Turns on the check that nobody has written into a unit that is freed from now on; `settle_written` throws what was
  /// found. For finding errors: it reads all that is freed.
  void check_all_written(bool checks) { checks_all_written_ = checks; }
  void settle_written() { write_check_.settle(units_); }
  /// The next reduction of each unit starts a new sum.
  void clear_gradients();
  /// Clears the gradients of some units, after a micro-batch that was abandoned: what is still being reduced comes
  /// before the next gradients.
  void abandon_gradients(const std::vector<int>& units);

  /// Gathers one unit's weights and hands them to the host, in f32: `use(parameter, values)` for every parameter of
  /// the unit, on every rank. Collective; blocks.
  using UseParameter = std::function<void(const Parameter& parameter, const float* values)>;
  void read_full(int unit, const UseParameter& use);
  /// Part of a parameter's values, f32: `count` from element `first` on.
  struct Piece {
    std::int64_t first, count;
    const float* values;
  };
  /// As read_full, piece by piece, in the order of the elements: what is f32 in memory is one piece, and what has to be
  /// cast or read for it is in pieces of at most 4 MiB, beside the unit as it is held.
  using UsePiece = std::function<void(const Parameter& parameter, const Piece& piece)>;
  void read_pieces(int unit, const UsePiece& use);

  /// A parameter of the model that is in no unit: checkpoints hold it all the same. It outlives this.
  void add_ignored(Parameter& parameter);
  const std::vector<Parameter*>& ignored() const { return ignored_; }
  std::vector<FlatParameter>& units() { return units_; }
  const std::vector<FlatParameter>& units() const { return units_; }
  StepState& step() { return step_; }
  const StepState& step() const { return step_; }
  OrderCheck& order_check() { return *order_check_; }
  int rank() const { return everybody_.rank(); }
  int ranks() const { return everybody_.size(); }
  /// True if the host keeps anything of any unit.
  bool keeps_on_host() const {
    return std::any_of(placements_.begin(), placements_.end(),
                       [](const auto& placement) { return placement->options.residence.has_any(); });
  }
  /// Scheme of units without a placement of their own.
  const ShardScheme& scheme() const { return placements_.front()->scheme; }
  /// Communicator over all ranks for small reductions on the compute stream.
  Communicator& compute_comm() { return everybody_; }
  /// Communicator on the compute stream over the ranks that share a loss, in the order of DataShare::index.
  Communicator& loss_comm() { return losses_; }
  /// World and grid of the job's ranks, and the communicators of its groups.
  const GroupTable& groups() const { return groups_; }
  /// Communicator for norms: over the ranks that together hold each master weight once, or, where those are not the
  /// same for every unit, over all ranks, of which `counts_in_norm` then says whose segments of a unit make up the
  /// whole.
  Communicator& norm_comm();
  bool counts_in_norm(const FlatParameter& unit) const {
    return !has_mixed_norms_ || unit.placement->is_first_replica();
  }
  Context& context() { return context_; }
  const Context& context() const { return context_; }

 private:
  /// Opens a window on masters that the host keeps; else empty.
  HostLink::Window open_masters(const FlatParameter& unit);
  void initialise(FlatParameter& unit, std::uint64_t seed, HostLink::Window window);
  void cast_masters(const FlatParameter& unit, const Buffer& master);
  void note_placement(const FlatParameter& unit);
  Memory acquire_shard(FlatParameter& unit, DType dtype, const char* label);
  bool can_share(const FlatParameter& unit) const;
  static bool gathers_in_two_steps(const FlatParameter& unit);
  Memory acquire_shared(FlatParameter& unit, Communicator& group, DType dtype, Stream& stream, const char* label);
  bool has_zero_copy() const;
  void withdraw(FlatParameter& unit);
  void withdraw_masters();
  void update_compute_copy(FlatParameter& unit);
  static void bind_whole(const FlatParameter& unit);
  static void set_gathered(FlatParameter& unit, DType dtype);
  void reduce(FlatParameter& unit);
  void divide_sum(FlatParameter& unit);
  void divide(const char* name, const Buffer& gradient, float divisor);

  Context& context_;
  LayoutOptions layout_;
  bool zero_copy_;
  GroupTable groups_;
  std::vector<std::shared_ptr<const Placement>> placements_;  // the first is of units that have none of their own
  Communicator& everybody_;
  Communicator& losses_;
  std::vector<std::shared_ptr<void>> windows_;  // shared memory of zero-copy units, and private shards
  std::optional<Pool> arena_;                   // memory of the transport, where it prefers its own
  Pool& comm_pool_;                             // everything that is communicated
  HostLink link_;
  Unsharder unsharder_;
  GradReducer reducer_;
  ScopeTransfer transfer_;
  std::vector<FlatParameter> units_;
  std::vector<Parameter*> ignored_;
  StepState step_{units_};
  DeferredUpdates deferred_updates_{context_};
  WriteCheck write_check_{context_, everybody_};
  std::unique_ptr<OrderCheck> order_check_;
  bool has_mixed_norms_ = false, checks_all_written_ = false, has_initial_weights_ = true;
  std::vector<Event> held_for_;
  std::map<int, std::function<void(int unit)>> reduced_hooks_;  // in the order in which they came
  int hooks_ = 0;                                               // number of hooks that came
  std::vector<int> reported_;                                   // units, in this step
  std::optional<int> updated_;                                  // a unit, in backward of this step
};

}  // namespace zs
