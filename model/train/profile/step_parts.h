#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "model/train/profile/step_times.h"

namespace zs {

/// Part of a step: what the compute stream did at a moment of it, or why it did nothing.
enum class StepPart : std::uint8_t {
  products,
  attention,
  norms,
  elementwise,  ///< every other op of the model
  loss,
  optimizer,
  gathers,     ///< waits while parameters are gathered: exposed
  reductions,  ///< waits while gradients are reduced: exposed
  waiting,     ///< for other streams otherwise, and in its own exchanges with other ranks
  data,        ///< has no work while the host reads samples
  other,       ///< has no work
};
inline constexpr int kStepParts = static_cast<int>(StepPart::other) + 1;

/// Rates that bound a rank, measured in this run; 0: not known.
struct StepCeilings {
  double gflops = 0, copy_gb_s = 0;
};

/// Parts of some steps' time: every moment is in one part, so that the parts add up to the steps.
class StepParts {
 public:
  struct Part {
    double ms = 0;     ///< time in all steps
    double flops = 0;  ///< FLOPs of products and attention, where the ops' buffers tell
    double bytes = 0;  ///< bytes that ops declare to read and write
  };

  /// `sequence`: tokens of a sample; 0: attention's FLOPs are not known.
  explicit StepParts(std::int64_t sequence = 0) : sequence_(sequence) {}

  void add(const StepTimes& step);
  int steps() const { return steps_; }
  const Part& of(StepPart part) const { return parts_[static_cast<std::size_t>(part)]; }
  double step_ms() const { return steps_ == 0 ? 0 : all_ms_ / steps_; }
  /// Time a step of gathers and, below, of reductions, as far as they ran beside compute's own ops.
  double hidden_gathers_ms() const { return steps_ == 0 ? 0 : hidden_gathers_ms_ / steps_; }
  double hidden_reductions_ms() const { return steps_ == 0 ? 0 : hidden_reductions_ms_ / steps_; }

  /// A table with a line for each part.
  std::string describe(const StepCeilings& ceilings) const;

 private:
  Part& part(StepPart which) { return parts_[static_cast<std::size_t>(which)]; }
  void add_op(const OpTime& op);
  std::string row(StepPart which, const StepCeilings& ceilings) const;

  std::int64_t sequence_;
  int steps_ = 0;
  double all_ms_ = 0, hidden_gathers_ms_ = 0, hidden_reductions_ms_ = 0;
  std::array<Part, kStepParts> parts_ = {};
};

/// Part that an op on the compute stream belongs to.
StepPart part_of(const OpTime& op);

}  // namespace zs
