#pragma once

#include <vector>

#include "runtime/shard/executor.h"

namespace zs {

struct AdamWConfig {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  float clip = 1.0f;        ///< largest global gradient norm; 0: no clipping
  bool order_free = false;  ///< the norm is summed in fixed point, so that no cut of the parameters changes a bit of it
};

/// AdamW over the master shards (Loshchilov, Hutter 2019), with global-norm clipping that never waits for the host: norm, clip
/// coefficient, learning rate and step number are scalars in device memory. A gradient that is not finite leaves the weights as
/// they are. Owns the moments; one host thread uses it. On return from `step`: enqueued, not done.
class AdamW {
 public:
  AdamW(Executor& executor, const AdamWConfig& config);

  /// One update from the reduced gradients of this step (`step_number` counts from 1), which it consumes. Collective.
  void step(float lr, std::int64_t step_number) {
    set_scalars(lr, step_number);
    update();
  }
  /// The two parts of `step`: what the host alone knows goes to the device, any time before the update; and the rest, which is the same
  /// work every time, so that it can be captured.
  void set_scalars(float lr, std::int64_t step_number);
  void update();
  /// f32 (1) on the device: the global norm of the last step's gradients before clipping.
  Buffer grad_norm() const;
  /// The moments of a unit's master weights, f32 (held_elems): with the step number they are all of the optimizer's state.
  Buffer first_moment(std::size_t unit) const { return moments(unit).m.buffer(DType::f32, held_elems(unit)); }
  Buffer second_moment(std::size_t unit) const { return moments(unit).v.buffer(DType::f32, held_elems(unit)); }

 private:
  struct Range {  // elements of one parameter in what is held
    std::int64_t offset, count;
    float weight_decay;
    const Parameter* parameter;
    StochasticRounding rounding;
  };
  struct Moments {
    Memory m, v;
    std::vector<Range> held, counted;  // what is updated here; of all ranks together every element once: the norm's
  };
  const Moments& moments(std::size_t unit) const { return moments_.at(unit); }
  std::int64_t held_elems(std::size_t unit) const { return executor_.units().at(unit).layout->held_elems(); }
  std::vector<Range> ranges(const FlatParameter& unit, const std::vector<ShardSegment>& segments) const;
  void squared_norm();
  void squared_norm_order_free();
  static std::vector<Range> trained(const std::vector<Range>& ranges);
  std::vector<Buffer> gradient_ranges() const;
  void update_unit(std::size_t unit);
  Buffer scalars() const { return scalars_.buffer(DType::f32, sizeof(StepScalars) / sizeof(float)); }
  Buffer squares() const { return squares_.buffer(config_.order_free ? DType::i64 : DType::f64, 1); }
  Buffer exponent() const { return config_.order_free ? exponent_.buffer(DType::i32, 1) : Buffer{}; }

  Executor& executor_;
  AdamWConfig config_;
  int shift_;  // fixed-point bits that leave room for every element of the model
  std::vector<Moments> moments_;
  Memory scalars_, squares_, exponent_;
};

}  // namespace zs
