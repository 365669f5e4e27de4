#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/shard/execute/executor.h"
#include "runtime/shard/placement/unit_policy.h"
#include "runtime/shard/schedule/scheduler.h"
#include "runtime/tensor/reduction.h"

namespace zs {

/// Options that say how a model is sharded.
struct ShardOptions {
  SchemeOptions scheme = {};
  PrefetchOptions schedule = {};
  MixedPrecisionPolicy precision = {};
  LayoutOptions layout = {};
  std::uint64_t seed = 0;  ///< seed of the initial weights, and of dropout
  Division division = {};  ///< divisor of the sum of gradients over the ranks: the mean, unless another rule is chosen
  /// First step of a gradient's reduction; null: gradients are reduce-scattered
  const GradientReduction* reduction = nullptr;
  /// Called for each group of ranks that moves parameters or gradients, alike on every rank: what it gives takes the
  /// group's place. Empty: the world's own communicators.
  ReplaceGroup replace_group = {};
  /// Zero-copy: where ranks can share memory, unsharded parameters are a view of their shards (docs/sharding.md)
  bool zero_copy = true;
  /// Checks that nobody writes into full parameters, which only the optimizer and an UnshardScope may: else a LostWrite
  /// at the end of the micro-batch. For finding errors: it reads all that is freed, adds a small all-reduce to each
  /// micro-batch, and takes the place of zero_copy, in whose views a write is the weight.
  bool checks_writes = false;
  /// Operations on parameters and gradients to omit: the values of a training without them are meaningless. Losses and
  /// norms go between ranks as ever.
  Omit omit = Omit::nothing;
  Residence residence = {};  ///< residence of shards: which the host keeps (docs/offload.md)
  /// Number of leading units that stay on the device, of those of which the host would keep something: they are the
  /// last whose gradients are reduced, and the first that are updated.
  int resident_units = 0;
  /// Dtype in which frozen units hold their weights, once: bf16, without f32 masters, on the device wherever the
  /// masters of others are. Units that run in f32, or are evaluated so, cast them for each gather. Initial values, and
  /// what is loaded, are rounded to it. None: f32 masters, and a copy where the unit runs in bf16.
  std::optional<DType> frozen_dtype = {};
  /// Format of the frozen matrices of blocks (Module::is_block), which shard_module makes units of their own beside
  /// those that they would be in, "blocks.0.quantized". None: they are held as the others. Initial values, and what is
  /// loaded, are rounded to it.
  const FrozenFormat* frozen_format = nullptr;
  /// Parameters that are not trained when shard_module makes units are units of their own, beside those that they would
  /// be in, which are frozen.
  bool splits_frozen = false;
  /// Axes of the job's RankGrid, the last varies fastest; none: each rank reads other data.
  std::vector<GridAxis> grid = {};
};

/// The sharded parameters of one model on one rank: units, their order, and the hooks that gather, free and reduce them
/// around forward and backward. Unit 0 is the root and is added first. Use, the same on every rank:
///
///     add_unit(...)...;
///     for each micro-batch: begin_micro_batch(); forward, inside ForwardScopes; backward(loss); end_micro_batch();
///     then the optimizer's step.
///
/// Owns the flat parameters; the Parameters belong to the model and must outlive it. One host thread uses it; nothing
/// blocks the host except read_full.
class ShardedRuntime : private ParameterOwner {
 public:
  /// A gather that was started by hand.
  class UnshardHandle {
   public:
    /// Makes compute wait: from now on it has the unit's parameters, until the unit is resharded by hand, by its own
    /// backward or by the end of the micro-batch.
    void wait() const;

   private:
    friend class ShardedRuntime;
    UnshardHandle(ShardedRuntime* runtime, int unit)
        : runtime_(runtime), model_(runtime->executor().step().life()), unit_(unit) {}
    ShardedRuntime* runtime_;
    Lifetime::Watch model_;
    int unit_;
  };

  /// Collective. Error(config) where the scheme does not go with the number of ranks.
  ShardedRuntime(Context& context, World& world, const ShardOptions& options);
  ~ShardedRuntime() override;

  /// Returns the unit's number. All units are added before the first micro-batch. A unit may have no parameters.
  /// Error(config) where the policy does not go with the scheme.
  int add_unit(std::string name, const std::vector<Parameter*>& parameters, const UnitPolicy& policy = {});

  /// Adds a buffer: f32 values, not sharded, that are no parameters and that checkpoints hold by their name. Gives it
  /// memory, with its initial constant, as long as this lives. UsageError where it has a value already.
  void add_buffer(Parameter& buffer);

  /// Begins a micro-batch. `first_sample`: index, among all samples of the step, of this rank's first, for random_key.
  void begin_micro_batch(Mode mode, bool is_last, std::optional<std::int64_t> first_sample = {});
  /// Key that the random numbers of the open micro-batch follow from, for an op that draws them for so many samples:
  /// the seed, the steps that are done, and the first of the samples. That is the one that begin_micro_batch was told;
  /// else samples are counted as if micro-batches of one size were dealt out to the ranks one after the other. None in
  /// an evaluation, which draws nothing. UsageError outside.
  std::optional<RandomKey> random_key(std::uint64_t place, std::int64_t samples) const;
  /// This rank's part of the data.
  DataShare data_share() const { return executor_.groups().grid().data_share(); }
  /// True if a micro-batch of training is open.
  bool is_training() const { return executor_.step().is_in_micro_batch() && mode_ == Mode::train; }
  /// Sets the steps that are done, of a training that goes on: random numbers follow from it. zs::load says it itself.
  /// Between steps.
  void set_steps_done(std::int64_t steps);
  void before_forward(int unit);
  void after_forward(int unit);
  /// Casts a tensor that comes into the unit, or, `cast_output`, that it hands on, to the dtype that its precision
  /// says; other tensors than of f32 and bf16 stay as they are.
  Tensor cast_input(int unit, const Tensor& x) const;
  /// True if cast_input would change this dtype.
  bool casts_forward_input(int unit, DType dtype) const;
  Tensor cast_output(int unit, const Tensor& y) const;
  void end_micro_batch();
  /// UsageError where this is a training micro-batch in which no parameter has had a backward.
  void check_backward() const;
  /// Abandons the open micro-batch after an exception that every rank saw alike, and leaves the runtime ready for
  /// another; the gradients of the step's earlier micro-batches stay. Where it had added to those they cannot be told
  /// apart any more: then all of the step's gradients go, and a UsageError says so.
  void abandon();
  /// Abandons as above, and drops the gradients of the whole step, however far it is.
  void abandon_step();

  /// Number of the unit that holds a parameter; none: it is ignored, or of another runtime.
  std::optional<int> unit_of(const Parameter& parameter) const;

  /// By hand, within a micro-batch or before it, alike on every rank: starts the unit's gather, which nothing waits for
  /// yet. Nothing where it is unsharded or on its way. For reading: who writes does so within an UnshardScope.
  UnshardHandle unshard(int unit);
  /// Frees the unit's full parameter; nothing where it is sharded. The optimizer's step wants every unit sharded.
  void reshard(int unit);
  /// Gathers every unit before a micro-batch begins, so that no rank's step waits for another's gather.
  void pregather();
  /// Sets the units that are gathered ahead when `unit` runs, instead of those of the recorded order; empty: nothing.
  void set_prefetch(ExecOrder::Phase phase, int unit, std::vector<int> targets);

  /// Switches of a unit, alike on every rank, from the next micro-batch on; UsageError within one.
  /// With gradient sync its gradients are reduced: without, they accumulate, whole, and the next micro-batch with it
  /// reduces the sum.
  void set_requires_gradient_sync(int unit, bool requires_sync);
  /// Switches the all-reduce: with it replicas exchange the sums that were reduced among those who share a set of
  /// masters; without, the sums wait for a later micro-batch, before the step's last one has begun.
  void set_requires_all_reduce(int unit, bool requires_all_reduce);
  /// Says if the full parameter is freed after the unit's forward; where it is resharded to a number of ranks, to
  /// those.
  void set_reshard_after_forward(int unit, bool reshards);
  /// Says if parameters are gathered for the unit's backward; that of an embedding, say, has no need of them. A
  /// UsageError of the op that needs them all the same.
  void set_unshard_in_backward(int unit, bool unshards);
  /// Says if the full parameter is freed after the unit's backward; after that of a step's last micro-batch it goes
  /// anyway.
  void set_reshard_after_backward(int unit, bool reshards);

  /// Adds `hook`: from now on the host calls it for each unit whose gradient of a step has been asked for: its last
  /// reduction is enqueued, and Executor::take_gradient makes compute wait for it. That is when the next unit is about
  /// to be reduced, whose backward the reduction had to run beside, or at the end of the step's last micro-batch. In
  /// the same order on every rank. Each hook is called, in the order in which they were added. Not within a
  /// micro-batch.
  void on_reduced(std::function<void(int unit)> hook);

  /// A hash of what decides, beside the model and its input, which work the next training step is: two steps with the
  /// same number, and with the same blocks of memory live when they begin (MemoryCounter::layout), are the same work on
  /// the same addresses.
  std::uint64_t step_key();

  /// The mean of x (f32) over the ranks that share a loss, element by element, the same bits on each; enqueued. The
  /// gradient of x is the mean of what came back to each rank. Collective.
  Tensor mean_over_ranks(const Tensor& x);
  /// Mean over the same ranks of a number of the host, such as an accuracy. Blocks.
  double mean_over_ranks(double x);

  OrderCheck& order_check() { return executor_.order_check(); }
  Executor& executor() { return executor_; }
  const Executor& executor() const { return executor_; }
  Scheduler& scheduler();
  Context& context() { return context_; }
  const ShardOptions& options() const { return options_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::string& name(int unit) const { return names_.at(static_cast<std::size_t>(unit)); }
  /// Everything asked of the executor since the current (or last) micro-batch began.
  const std::vector<Action>& actions() const { return actions_; }
  /// Number of entries that the device's trace had when each action was asked for.
  const std::vector<std::size_t>& moments() const { return moments_; }
  /// Appends to `log`, as well, what is asked of the executor from now on; it must live until another (or null) takes
  /// its place.
  void log_actions(std::vector<Action>* log) { log_ = log; }

 private:
  friend class UnshardScope;  // UnshardScope has units gathered anew that it has written

  void before_backward(Parameter& parameter) override;
  void after_backward(Parameter& parameter) override;
  [[noreturn]] void refuse_use(const Parameter& parameter) const override;
  void drop(const std::vector<int>& units, bool of_step);
  friend void broadcast_parameters(ShardedRuntime& runtime, int root);
  void adopt_seed(int root);
  std::shared_ptr<const Placement> place(const std::string& unit, const UnitPolicy& policy);
  bool stays_resident(const UnitPolicy& policy) const;
  void check_new(const std::string& unit, const std::vector<Parameter*>& parameters) const;
  int pending_uses(int unit) const;
  void run(const std::vector<Action>& actions);
  void run_and_report(const std::vector<Action>& actions);
  void report_pending();
  void warn();
  Scheduler& switches(const char* call);
  static Scheduler::AfterForward after_forward_of(const Reshard& reshard);
  void check_mode(Mode mode);
  void check_frozen() const;
  /// `call` does not go with an UnshardScope of the unit.
  void check_no_scope(std::string_view call, int unit) const;

  Context& context_;
  ShardOptions options_;
  Executor executor_;
  Mode mode_ = Mode::train;
  bool is_last_ = false, has_backward_ = false;  // this micro-batch
  std::optional<std::int64_t> first_sample_;     // its
  std::optional<ContextClaim> claim_;            // the open one's
  std::vector<std::string> names_;
  std::vector<UnitPolicy> policies_;
  std::unique_ptr<Scheduler> scheduler_;  // made at first use, when all units are known
  std::unordered_map<const Parameter*, int> unit_of_;
  std::map<std::string, int> unit_of_name_;
  std::vector<std::pair<Parameter*, Tensor>> buffers_;
  std::vector<Action> actions_;
  std::vector<std::size_t> moments_;
  std::vector<Action>* log_ = nullptr;
  std::optional<int> reduced_;  // unit whose gradient is asked for, and not yet reported
  int resident_ = 0;            // units, of options_.resident_units
  bool has_warned_ = false, has_warned_unused_ = false, has_warned_host_ = false;
};

/// Micro-batches that begin while it lives are not reduced: gradients accumulate, whole, and the next micro-batch that
/// is reduced reduces the sum. Alike on every rank; nests.
class NoSync {
 public:
  explicit NoSync(ShardedRuntime& runtime)
      : scheduler_(runtime.scheduler()), model_(runtime.executor().step().life()), previous_(scheduler_.reduces()) {
    scheduler_.set_reduces(false);
  }
  ~NoSync() {
    if (!model_.has_ended()) scheduler_.set_reduces(previous_);
  }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Scheduler& scheduler_;
  Lifetime::Watch model_;
  bool previous_;
};

/// A unit's forward, or that of several at once. While it lives the units' parameters are unsharded. In the second run
/// of a recomputed function it only makes sure of that: the forward has been, and the unit's backward, which is still
/// to come, frees it.
class ForwardScope {
 public:
  /// `runtime` is null: of no unit.
  ForwardScope(ShardedRuntime* runtime, int unit) : runtime_(runtime), one_(unit), units_(&one_, runtime ? 1 : 0) {
    enter();
  }
  /// Entered in this order and left in the other. They are where the span says as long as the scope lives.
  ForwardScope(ShardedRuntime* runtime, std::span<const int> units) : runtime_(runtime), units_(units) { enter(); }
  /// Throws what after_forward throws, unless an exception is already under way.
  ~ForwardScope() noexcept(false);
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  void enter();

  ShardedRuntime* runtime_;
  int one_ = 0;
  std::span<const int> units_;
  int exceptions_ = std::uncaught_exceptions();
  std::optional<MemoryOwner> owner_;
};

}  // namespace zs
