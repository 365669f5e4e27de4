#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/name_pattern.h"
#include "runtime/shard/execute/executor.h"
#include "runtime/shard/optimizers/grad_norm.h"
#include "runtime/shard/optimizers/parameter_norms.h"
#include "runtime/shard/optimizers/update_counts.h"

namespace zs {

/// Group of parameters of these names, which differ from the rest.
struct ParameterGroup {
  std::string pattern;                     ///< a NamePattern: "*.bias"
  float lr_scale = 1;                      ///< times the learning rate of the step
  std::optional<float> weight_decay = {};  ///< instead of the optimizer's, of norms and biases too
};

/// Options that all optimizers have.
struct OptimizerOptions {
  float weight_decay = 0;   ///< not of norms and biases
  float clip = 1.0f;        ///< largest norm of all gradients (GradNorm); 0: no clipping
  bool order_free = false;  ///< the norm is summed in fixed point, so that no cut of the parameters changes a bit of it
  std::vector<ParameterGroup> groups = {};  ///< the first that matches; one that matches no parameter is a UsageError
  /// Above 0, below 1: there is an average a of the weights w, which begins as the weights after the first update, and
  /// after each a := average a + (1 - average) w.
  float average = 0;
  /// Each unit is updated in backward, as soon as its gradient is reduced, and the gradient's memory goes then: in
  /// a step of one micro-batch the reduced gradients of two units exist at once. begin_step() and end_step() take the
  /// place of step(). There is no norm of all gradients: `clip` must be 0, and no step is skipped for one that is not
  /// finite. Ranks that did not train alike are found by end_step(), after the updates. Not with an average, Muon,
  /// AdamW8bit, zero-copy units, or what the host keeps: a UsageError each; the only optimizer of its runtime.
  bool in_backward = false;
};

/// Copies an optimizer's own options, which have these members by the same names.
template <class Config>
OptimizerOptions shared_options(const Config& config) {
  OptimizerOptions options{.weight_decay = config.weight_decay,
                           .clip = config.clip,
                           .order_free = config.order_free,
                           .groups = config.groups,
                           .average = config.average};
  if constexpr (requires { config.in_backward; }) options.in_backward = config.in_backward;
  return options;
}

/// Form of a state, in memory and in checkpoints.
struct StateForm {
  DType dtype = DType::f32;
  /// Number of a parameter's elements, counted from its first, that have one element of the state
  std::int64_t block_elems = 1;
  bool operator==(const StateForm&) const = default;
};

/// Updates the master shards, with global-norm clipping that never waits for the host: norm, clip coefficient and
/// learning rate are scalars in device memory. A gradient that is not finite leaves the weights as they are: such steps
/// are counted. How many steps have updated a parameter is counted for each, by the device, and checkpoints keep it:
/// one that was frozen, or had no gradient, is as if it had begun later, and a step that was skipped as if it had not
/// been. Owns its state; one host thread uses it. On return from `step`: enqueued, not done.
///
/// An optimizer of one's own says what becomes of a slice of elements:
///
///     struct Descent : zs::Optimizer {
///       explicit Descent(zs::Executor& executor) : Optimizer(executor, {.name = "Descent"}, {.clip = 1}) {}
///       Update slice_update() const override {
///         return [](zs::ExecContext&, const Slice& s) {
///           const zs::StepScalars& step = s.step();
///           float* const w = s.master.as<float>();
///           const float* const g = s.grad.as<float>();
///           for (std::int64_t i = 0; step.skip == 0 && i < s.master.elems; ++i) w[i] -= step.lr *
///           step.clip_coefficient * g[i];
///         };
///       }
///     };
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update from the reduced gradients of this step, which it consumes. Collective. UsageError, before anything is
  /// changed, where there are none: after another step, before the last micro-batch has ended, without a backward. The
  /// first step that is skipped is said in a line on stderr, by rank 0.
  void step(float lr) { step(lr, 1); }
  /// Steps as above. `step_number` counts from 1 and is for the ranks to compare, no more.
  void step(float lr, std::int64_t step_number);
  /// Begin and end of a step with in_backward: before its last micro-batch begins, and after its end. UsageError where
  /// one is missing, or without in_backward.
  void begin_step(float lr);
  void end_step();
  /// The two parts of `step`, but for the line: what the host alone knows goes to the device, any time before the
  /// update; and the rest, which is the same work every time where `slots_key` is the same, so that it can be captured.
  void set_scalars(float lr, std::int64_t step_number);
  /// `weight`: f32 (1) on the device, the same on every rank: where it is 0 the step is skipped, as one of gradients
  /// that are not finite; empty: it is not asked.
  void update(const Buffer& weight = {});
  /// An update's work is enqueued: what update() notes itself, and who replays its work behind that.
  void note_update();
  std::uint64_t slots_key() const;
  /// Steps that were skipped since this began, their gradients not being finite, or their weight 0. Waits for the
  /// device.
  std::int64_t skipped() const;
  /// f32 (1) on the device: the global norm of the last step's gradients before clipping.
  Buffer grad_norm() const;

  /// Exchanges the weights and their average (OptimizerOptions::average, or Definition::evaluation), for an evaluation,
  /// and back; nothing before the first update. Collective; blocks; between steps. UsageError where there is none.
  void swap_average();
  bool has_average() const { return options_.average > 0 || definition_.evaluation; }
  /// Name of the average in checkpoints.
  static constexpr const char* kAverage = "average";

  /// Model that it trains.
  const Executor& trained() const { return executor_; }
  /// "adamw": its name in launches and checkpoints.
  const std::string& kind() const { return kind_; }
  /// Names of the state in checkpoints: "adamw.m", "adamw.v", and kAverage.
  const std::vector<std::string>& state_names() const { return state_names_; }
  /// One state of a unit's master weights, f32 (held_elems): with `updates` it is all of the state. For a state that
  /// every parameter of the unit has.
  Buffer state(std::size_t which, std::size_t unit) const;
  /// True if a parameter of a unit has that state.
  bool has_state(std::size_t which, std::size_t unit, std::size_t parameter) const {
    return units_.at(unit).has_state.at(which).at(parameter);
  }
  StateForm form(std::size_t which) const {
    return which < definition_.forms.size() ? definition_.forms[which] : StateForm{};
  }
  /// True if all state is f32, an element for each of the parameter's, and there is no other.
  bool has_plain_state() const { return definition_.forms.empty() && !definition_.sums_squared_lr(); }
  /// Size in bytes of a unit's state that this rank holds.
  std::int64_t state_bytes(std::size_t unit) const;
  /// True if all of the unit's parameters have the state, in f32 as the masters lie.
  bool is_of_all(std::size_t which, std::size_t unit) const;
  /// All of one that this rank holds, in its form, wherever it is kept; empty where no parameter of this rank has it.
  Buffer kept_state(std::size_t which, std::size_t unit) const {
    const Memory& state = units_.at(unit).state.at(which);
    return state ? all_of(which, state) : Buffer{};
  }
  /// Part of a state for elements that this rank holds: one of FlatParameter::held_segments(), by its place there, or
  /// of the blocks that these are in. Empty where the parameter has no such state. `all`: kept_state(), or a copy.
  Buffer state_of(std::size_t which, std::size_t unit, std::size_t segment, const Buffer& all) const;
  Buffer state_of(std::size_t which, std::size_t unit, std::size_t segment) const {
    return state_of(which, unit, segment, kept_state(which, unit));
  }
  /// True if the host keeps the unit's state, see HostLink.
  bool is_on_host(std::size_t unit) const {
    return executor_.units().at(unit).placement->options.residence.has_moments_on_host;
  }
  /// Numbers of updates of each parameter.
  UpdateCounts& counts() { return counts_; }

  /// Weights that a model is evaluated, exported and used with, where these are not the masters: master + factor *
  /// state. Whoever has them validates, and saves what is for others, between two swap_average().
  struct Evaluation {
    std::size_t state;  ///< its place among state_names(), f32
    float factor;
  };
  /// Definition of a kind of optimizer.
  struct Definition {
    std::string name;                     ///< "AdamW": of launches, in lower case, and errors
    std::vector<std::string> state = {};  ///< "m", "v": f32, which begin as zeros
    /// Settings that ranks must have alike: "AdamW's eps", "1e-08"
    std::vector<std::pair<std::string, std::string>> settings = {};
    std::vector<StateForm> forms = {};  ///< form of each state; none: f32, element by element
    /// Tells if a parameter has a state, by its place in `state`; none: each has all of them.
    std::function<bool(std::size_t which, const FlatView& parameter)> has_state = {};
    /// Tells if update_apart() updates a parameter, and slice_update() does not; none: there are no such parameters.
    std::function<bool(const FlatView& parameter)> is_apart = {};
    std::optional<Evaluation> evaluation = {};  ///< none: the masters are the weights for use
    StepCorrection correction = {};             ///< scalars of a step that follow from the number of updates
    /// True if slices have Slice::norms, as LAMB and LARS need them. Not for units of which the host keeps something,
    /// nor in backward: a UsageError.
    bool has_norms = false;
    /// True if checkpoints have UpdateCount::squared_lr.
    bool sums_squared_lr() const { return correction.kind == StepCorrection::Kind::schedule_free; }
  };
  const Definition& definition() const { return definition_; }

 protected:
  Optimizer(Executor& executor, const Definition& definition, const OptimizerOptions& options);

  /// Elements of one parameter, f32, on the device.
  struct Slice {
    Buffer master, grad;
    Buffer copy;                ///< bf16: becomes the new masters; empty: there is none, or somebody else makes it
    std::vector<Buffer> state;  ///< in the order of Definition::state; empty where the parameter has none
    Buffer scalars;             ///< as StepScalars
    float weight_decay;
    ElementRuns part;  ///< place of these elements in the parameter
    /// f32 (2): norms of the whole parameter, of its weights, and of what slice_direction() has left in the gradient's
    /// place. The same bits on every rank, in every layout and strategy. Empty without Definition::has_norms.
    Buffer norms = {};
    /// Ranges, as kernels that have two moments at most take them.
    static std::vector<UpdateRange> ranges_of(const std::vector<Slice>& slices);
    /// Scalars on a CPU device.
    const StepScalars& step() const { return *static_cast<const StepScalars*>(scalars.data); }
    float weight_norm() const { return norms.as<float>()[0]; }     ///< likewise
    float direction_norm() const { return norms.as<float>()[1]; }  ///< likewise
  };
  /// Called on the compute stream for each slice. The gradient is as reduced: it takes it times
  /// StepScalars::clip_coefficient, and leaves all as it is where StepScalars::skip is not 0. An element's update
  /// depends on nothing but it. Where `copies` says so it writes `copy` too.
  using Update = std::function<void(ExecContext& exec, const Slice& slice)>;
  virtual Update slice_update() const { return {}; }
  /// Work before the norms are taken, where Definition::has_norms is: it may write the direction of the update into
  /// Slice::grad, and the state. By default the norm is the gradient's, as reduced. A step that is skipped has none.
  virtual Update slice_direction() const { return {}; }
  /// Update of all slices of a unit together, which a GPU's kernel takes in one launch; else slice_update's, one after
  /// the other.
  using UnitUpdate = std::function<void(ExecContext& exec, const std::vector<Slice>& slices)>;
  virtual UnitUpdate unit_update() const { return of_each(slice_update()); }
  static UnitUpdate of_each(Update update);
  /// True if the update writes the bf16 copy; else it is cast from the masters after it.
  virtual bool copies() const { return false; }
  /// Kernels of whoever runs what unit_update() is asked for: the device, or the host's processors (Residence).
  const KernelTable& kernels() const { return is_for_host_ ? cpu_kernels() : executor_.context().kernels(); }
  Executor& executor() { return executor_; }

  /// A slice on its way, and what it is of.
  struct Part {
    Slice slice;
    Buffer cast;  ///< the bf16 copy, where it is cast from the masters after the update
    StochasticRounding rounding;
    bool is_cast_at_random;
    std::size_t view;   ///< the parameter's place in the unit
    std::int64_t slot;  ///< slot of the scalars
  };
  /// Parameters of a unit that are updated apart, as far as this rank holds them.
  struct Apart {
    std::size_t unit;
    std::vector<Part> parts;
  };
  /// Updates the parameters that are apart, after the norm of the gradients: of one unit of which the host keeps
  /// something, or at once of all units of which it keeps nothing. Collective: the same units on every rank. A class
  /// that has it calls settle() in its destructor.
  virtual void update_apart(std::vector<Apart>) {}
  /// Enqueues updates that were left for the next forward.
  void settle() noexcept;
  /// True if the host keeps something of the unit, which is on the device for the unit's update.
  bool has_window(std::size_t unit) const { return executor_.units().at(unit).placement->options.residence.has_any(); }
  /// True if the update that is being made is of the parameter.
  bool is_updated(std::size_t unit, std::size_t parameter) const {
    return units_.at(unit).slots.at(parameter) != kNotUpdated;
  }
  /// Enqueues `update` of each on compute, and the copies after it.
  void launch_parts(OpInfo info, std::vector<Part> parts, const UnitUpdate& update) const;
  std::int64_t slot_count() const { return std::max<std::int64_t>(std::ssize(slots_), 1); }
  static constexpr std::int64_t kScalars = UpdateCounts::kScalars;
  /// Scalars of a slot; the first also hold the norm.
  Buffer scalars(std::int64_t slot) const { return all_scalars().slice(slot * kScalars, kScalars); }
  Buffer all_scalars() const { return scalars_.buffer(DType::f32, slot_count() * kScalars); }

 private:
  struct Range {  // elements of one parameter in what is held
    std::int64_t offset, count;
    float weight_decay, lr_scale;
    const Parameter* parameter;
    StochasticRounding rounding;
    std::size_t view;                              // the parameter's place in the unit
    std::vector<std::int64_t> state_offsets = {};  // offset in each state; -1: the parameter has none

    ElementRuns part() const { return {rounding.first, rounding.run, rounding.stride}; }
  };
  struct Unit {
    std::vector<Memory> state;
    std::vector<Range> held;                   // ranges that are updated here
    std::vector<std::vector<bool>> has_state;  // by state and parameter
    std::vector<float> lr_scales;              // scale of each parameter's learning rate
    std::vector<std::int64_t> slots;           // slot of each parameter that the last update is of; else kNotUpdated
  };
  static constexpr std::int64_t kNotUpdated = UpdateCounts::kNone;
  struct Slot {  // parameters whose scalars are alike
    std::uint64_t history;
    float lr_scale;
    std::size_t unit, parameter;  // one of them
  };
  /// Buffers that an update of a unit works on, on the device.
  struct Held {
    Buffer master, grad;
    std::vector<Buffer> states;  // as Definition::state; empty where nobody here has it
  };
  const ParameterGroup* group_of(const std::string& name) const;
  void check_numbers() const;
  void check_groups() const;
  Unit make_unit(const FlatParameter& unit);
  /// Number of elements that a state has of a range.
  std::int64_t count_of(std::size_t which, const Range& range) const {
    return form(which).block_elems == 1 ? range.count : blocks_of(range.part(), range.count);
  }
  Buffer all_of(std::size_t which, const Memory& state) const {
    return state.buffer(form(which).dtype, state.bytes() / size_of(form(which).dtype));
  }
  std::int64_t place_states(Unit& made, const FlatParameter& unit, std::size_t which) const;
  std::vector<Range> ranges(const FlatParameter& unit, const std::vector<ShardSegment>& segments) const;
  void start_in_backward();
  void check_time(const char* call, bool is_wanted) const;
  void update_in_backward(int unit);
  void note_updated(std::size_t unit);
  void update_units(const std::vector<std::size_t>& units);
  void update_unit(std::size_t unit, HostLink::Window window);
  void launch_update(std::size_t unit, const Held& held) const;
  /// True if the unit's update is left for the next forward.
  bool is_left(const FlatParameter& unit) const;
  void leave_updates(const std::vector<int>& units);
  void confirm_update();
  HostLink::Window load(std::size_t unit);
  struct HostWork;
  bool is_updated_on_host(std::size_t unit) const;
  void start_updates_on_host();
  void bring_scalars();
  HostWork host_work(std::size_t unit, const Held& held, const Buffer& copy) const;
  /// Updates the unit, after bring_scalars(); `is_last`: of those that come one after the other.
  void update_on_host(std::size_t unit, bool is_last);
  void update_on_host_now(const std::vector<std::size_t>& units);
  Held held_of(std::size_t unit, const HostLink::Window& window) const;
  std::vector<Part> parts(std::size_t unit, bool are_apart, const Held& held) const;
  void take_norms(const std::vector<std::size_t>& units);
  void check_placement() const;
  void check_in_backward() const;
  void count_skipped(const Buffer& weight);
  void report_skipped();
  void set_slots();
  void correct_scalars();
  std::int64_t slot_of(std::size_t unit, std::size_t parameter) const;
  /// Scalars with which the average of a slot's parameters is updated, after all others.
  Buffer average_scalars(std::int64_t slot) const {
    return every_scalars().slice((slot_count() + slot) * kScalars, kScalars);
  }
  Buffer every_scalars() const {
    return scalars_.buffer(DType::f32, slot_count() * kScalars * (options_.average > 0 ? 2 : 1));
  }
  void update_average();
  Buffer skips() const { return skips_.buffer(DType::f32, 1); }

  Executor& executor_;
  Lifetime::Watch model_{executor_.step().life()};
  std::string name_, kind_;  // "AdamW", "adamw"
  Definition definition_;
  std::vector<std::string> state_names_;
  OptimizerOptions options_;
  std::vector<NamePattern> patterns_;  // patterns of the groups
  std::vector<Unit> units_;
  std::vector<Slot> slots_;
  std::optional<GradNorm> norm_;
  std::optional<ParameterNorms> norms_;  // none without Definition::has_norms
  Memory scalars_, skips_;
  UpdateCounts counts_;
  HostLink::Window ahead_;  // window of the unit whose update is left, and comes next
  UnitUpdate update_;       // update of the last step
  bool makes_copies_ = false, is_for_host_ = false;
  UnitUpdate host_update_;           // update_ by the host's processors
  Memory host_scalars_, host_copy_;  // the last step's scalars there; a unit's new copy on its way to the device
  Event scalars_read_, host_copy_read_;
  Memory marks_;  // f32 (2): less the number of the last step whose updates were left, as far as the device came
  std::int64_t left_steps_ = 0;
  bool is_confirmed_ = true;
  int hook_ = -1;  // hook of in_backward
  bool has_begun_ = false;
  std::int64_t begun_at_ = 0;                                           // StepState::dropped()
  bool is_swapped_ = false;                                             // the average is in the place of the masters
  std::shared_ptr<bool> has_reported_ = std::make_shared<bool>(false);  // the stream's
};

}  // namespace zs
