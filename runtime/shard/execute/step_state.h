#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/shard/execute/flat_parameter.h"
#include "runtime/shard/execute/lifetime.h"
#include "runtime/shard/schedule/scheduler.h"

namespace zs {

/// State of a step, for calls that may come only at certain places of it: they are refused by a UsageError that says
/// what was forgotten. Owned by an Executor, whose `units` it looks at; one host thread uses it.
class StepState {
 public:
  explicit StepState(const std::vector<FlatParameter>& units) : units_(units) {}

  /// Its own, and so the model's.
  Lifetime::Watch life() const { return Lifetime::Watch(life_); }

  void begin_micro_batch(Mode mode);
  void end_micro_batch(bool is_last);
  void drop_micro_batch() { is_open_ = false, ++dropped_; }
  /// The gradients so far were taken.
  void end_step() { micro_batches_ = 0, has_ended_ = false; }
  /// Number of micro-batches and steps that were abandoned so far.
  std::int64_t dropped() const { return dropped_; }
  /// Gradients were dropped, and the step begins again.
  void drop_step();

  /// Counters that random numbers of the open micro-batch follow from: the steps whose last micro-batch of training has
  /// ended, and the micro-batches of training that have ended since.
  std::int64_t steps_done() const { return steps_done_; }
  std::int64_t micro_batch() const { return micro_batch_; }
  /// A checkpoint of so many steps was loaded.
  void set_steps_done(std::int64_t steps) { steps_done_ = steps, micro_batch_ = 0; }

  bool is_in_micro_batch() const { return is_open_; }
  /// True if the step's last micro-batch has ended, and its gradients are there.
  bool has_ended() const { return has_ended_; }
  /// "a micro-batch", "an evaluation": the one that is open.
  const char* open_name() const { return mode_ == Mode::eval ? "an evaluation" : "a micro-batch"; }
  /// True if the unit held a reduced sum when the open micro-batch began.
  bool had_sum(std::size_t unit) const { return unit < had_sum_.size() && had_sum_[unit]; }

  /// `call` does not go with an UnshardScope of any unit.
  void check_no_scope(std::string_view call) const;
  static void check_no_scope(std::string_view call, const FlatParameter& unit);
  /// `call` does not go within a micro-batch either.
  void check_no_micro_batch(std::string_view call) const;
  /// Weights that a call goes with: those that are trained, or whatever is in their place.
  enum class Weights : std::uint8_t { trained, any };
  /// `call` does not go with gradients that no optimizer has taken either.
  void check_between_steps(std::string_view call, Weights weights = Weights::trained) const;
  /// Says that an optimizer has put its average in the place of the weights; empty: the weights are back.
  void set_swapped(std::string optimizer) { swapped_ = std::move(optimizer); }
  void check_not_swapped(std::string_view call) const;
  /// Checks an optimizer's step: a step's last micro-batch has ended, and every unit is sharded.
  void check_update() const;
  /// Checks, once the step waits for the reductions, that some unit has a gradient.
  void check_has_gradient() const;

 private:
  Lifetime life_;
  const std::vector<FlatParameter>& units_;
  Mode mode_ = Mode::train;
  bool is_open_ = false, has_ended_ = false;  // a micro-batch; the step's last one
  int micro_batches_ = 0;                     // micro-batches of training, ended since the last step
  std::int64_t steps_done_ = 0, micro_batch_ = 0, dropped_ = 0;
  std::vector<bool> had_sum_;
  std::string swapped_;
};

}  // namespace zs
