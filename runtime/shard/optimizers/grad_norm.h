#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "runtime/shard/execute/executor.h"
#include "runtime/tensor/tensor.h"

namespace zs {

/// Fixed-point bits that leave room for the squares of so many elements: x^2 < 2^(2 e + 2) for each, so that n of them
/// stay below 2^63 when shift + 2 + log2(n) < 63.
int fixed_point_shift(std::int64_t elements);

/// Options of the norm: which one.
struct NormOptions {
  /// (sum of |x|^power)^(1 / power): above 0; infinity (std::numeric_limits<float>::infinity()) is the largest |x|.
  float power = 2;
  bool order_free = false;  ///< power 2 is summed in fixed point, so that no cut of the parameters changes a bit of it
};

/// The norm of all of a step's gradients, each element once: of units, sharded or whole on every rank, and of trained
/// parameters that are ignored in sharding and have a gradient, which is alike on every rank. Owned by an optimizer;
/// one host thread uses it. On return from every function: enqueued on compute, not done.
class GradNorm {
 public:
  GradNorm(Executor& executor, const NormOptions& options);

  /// The reductions so far are waited for; a UsageError where no unit has a gradient.
  static void take_gradients(Executor& executor);
  /// Sums up the norm. Collective, after take_gradients.
  void sum();
  /// `scalars`, as StepScalars: the norm, what a gradient is multiplied with so that its norm is at most `largest` (0:
  /// by nothing), and whether the norm is not finite.
  void set_clip(const Buffer& scalars, float largest) const;

 private:
  /// Something of all gradients, which goes into `out`: it begins as `begin` leaves it, and `add` has all parts.
  struct Accumulation {
    const char* name;
    std::vector<Buffer> reads;
    Buffer out;
    std::function<void(ExecContext&)> begin;
    std::function<void(ExecContext&, const SumParts&)> add;
  };
  void accumulate(const Accumulation& sum);
  void launch(const Accumulation& sum, bool is_first, const std::vector<Buffer>& parts);
  bool is_counted(std::size_t unit) const;
  std::vector<Buffer> parts_of(std::size_t unit, const Buffer& held) const;
  std::vector<Buffer> ignored_parts() const;
  void sum_squares();
  void sum_squares_order_free();
  void sum_powers();
  bool is_order_free() const { return options_.order_free && options_.power == 2; }
  Buffer total() const { return total_.buffer(is_order_free() ? DType::i64 : DType::f64, 1); }
  /// The largest binary exponent, or magnitude's bits.
  Buffer largest() const { return largest_.buffer(DType::i32, 1); }
  Buffer exponent() const { return is_order_free() ? largest() : Buffer{}; }

  Executor& executor_;
  NormOptions options_;
  std::vector<std::vector<ShardSegment>> segments_;  // this rank's segments of each unit
  int shift_;                                        // fixed-point bits that leave room for every element of the model
  Memory total_, largest_;
};

/// Multiplies all gradients of a step, those of GradNorm, by min(1, max_norm / (norm + 1e-6)), without waiting for the
/// device, and returns the norm before, f32 (1). max_norm 0 measures only. Between a step's last micro-batch and the
/// optimizer's step, whose own clip is 0 then as a rule; collective. A norm that is not finite leaves the gradients as
/// they are: the optimizer skips the step. UsageError where there are no gradients, or for an option that makes no
/// sense.
Tensor clip_grad_norm(Executor& executor, float max_norm, const NormOptions& options = {});

}  // namespace zs
