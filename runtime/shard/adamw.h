#pragma once

#include <memory>
#include <vector>

#include "runtime/shard/executor.h"

namespace zs {

struct AdamWConfig {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  float clip = 1.0f;        ///< largest global gradient norm; 0: no clipping
  bool order_free = false;  ///< the norm is summed in fixed point, so that no cut of the parameters changes a bit of it
};

/// AdamW over the master shards (Loshchilov, Hutter 2019), with global-norm clipping that never waits for the host: norm, clip
/// coefficient, learning rate and bias corrections are scalars in device memory. A gradient that is not finite leaves the weights as
/// they are: such steps are counted. Each parameter's bias correction goes by how many steps have updated it, which checkpoints keep: one
/// that was frozen, or had no gradient, is corrected as if it had begun later. Owns the moments; one host thread uses it. On return from
/// `step`: enqueued, not done.
class AdamW {
 public:
  AdamW(Executor& executor, const AdamWConfig& config);

  /// One update from the reduced gradients of this step, which it consumes. Collective. UsageError, before anything is changed, where there
  /// are none: behind another step, before the last micro-batch has ended, without a backward. The first step that is skipped is said in a
  /// line on stderr, by rank 0.
  void step(float lr);
  /// The same. `step_number` counts from 1 and is for the ranks to compare, no more.
  void step(float lr, std::int64_t step_number);
  /// The two parts of `step`, but for the line: what the host alone knows goes to the device, any time before the update; and the rest,
  /// which is the same work every time where `slots_key` is the same, so that it can be captured.
  void set_scalars(float lr, std::int64_t step_number);
  void update();
  /// The device has done the last update's work again.
  void note_replayed() { count_updates(); }
  std::uint64_t slots_key() const;
  /// Steps that were skipped since this began, their gradients not being finite. Waits for the device.
  std::int64_t skipped() const;
  /// f32 (1) on the device: the global norm of the last step's gradients before clipping.
  Buffer grad_norm() const;
  /// The moments of a unit's master weights, f32 (held_elems): with `updates` they are all of the optimizer's state.
  Buffer first_moment(std::size_t unit) const { return moments(unit).m.buffer(DType::f32, held_elems(unit)); }
  Buffer second_moment(std::size_t unit) const { return moments(unit).v.buffer(DType::f32, held_elems(unit)); }
  /// How many steps have updated a parameter of a unit.
  std::int64_t updates(std::size_t unit, std::size_t parameter) const { return moments(unit).updates.at(parameter); }
  void set_updates(std::size_t unit, std::size_t parameter, std::int64_t updates) { moments_.at(unit).updates.at(parameter) = updates; }

 private:
  struct Range {  // elements of one parameter in what is held
    std::int64_t offset, count;
    float weight_decay;
    const Parameter* parameter;
    StochasticRounding rounding;
    std::size_t view;  // the parameter's place in the unit
  };
  struct Moments {
    Memory m, v;
    std::vector<Range> held, counted;   // what is updated here; of all ranks together every element once: the norm's
    std::vector<std::int64_t> updates;  // of each parameter
    std::vector<bool> is_updated;       // by the last update
  };
  const Moments& moments(std::size_t unit) const { return moments_.at(unit); }
  std::int64_t held_elems(std::size_t unit) const { return executor_.units().at(unit).layout->held_elems(); }
  std::vector<Range> ranges(const FlatParameter& unit, const std::vector<ShardSegment>& segments) const;
  void squared_norm();
  void squared_norm_order_free();
  static std::vector<Range> trained(const std::vector<Range>& ranges);
  std::vector<Buffer> gradient_ranges() const;
  void update_unit(std::size_t unit);
  void check_has_gradient();
  void count_updates();
  void count_skipped();
  void report_skipped();
  void set_slots();
  std::int64_t slot_of(std::int64_t updates) const;
  static constexpr std::int64_t kScalars = sizeof(StepScalars) / sizeof(float);
  /// Those of parameters that were updated so many times before; the first also hold the norm.
  Buffer scalars(std::int64_t slot) const { return all_scalars().slice(slot * kScalars, kScalars); }
  Buffer all_scalars() const { return scalars_.buffer(DType::f32, std::ssize(slots_) * kScalars); }
  Buffer skips() const { return skips_.buffer(DType::f32, 1); }
  Buffer squares() const { return squares_.buffer(config_.order_free ? DType::i64 : DType::f64, 1); }
  Buffer exponent() const { return config_.order_free ? exponent_.buffer(DType::i32, 1) : Buffer{}; }

  Executor& executor_;
  AdamWConfig config_;
  int shift_;  // fixed-point bits that leave room for every element of the model
  std::vector<Moments> moments_;
  std::vector<std::int64_t> slots_{0};  // the numbers of updates that there are
  Memory scalars_, squares_, exponent_, skips_;
  std::shared_ptr<bool> has_reported_ = std::make_shared<bool>(false);  // the stream's
};

}  // namespace zs
