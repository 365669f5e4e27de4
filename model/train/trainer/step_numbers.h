#pragma once

#include <cstdint>
#include <string>

#include "model/train/config/config.h"
#include "model/train/run_dir/metrics.h"
#include "model/train/session/session.h"

namespace zs {

/// Metrics of a step that took so long, as metrics.jsonl has them, but for its validation and the steps that were
/// skipped.
StepMetrics step_metrics(const Config& config, std::int64_t step, const StepResult& result, double seconds);

/// Steps of a run that updated nothing.
struct SkippedSteps {
  std::int64_t count = 0;
  bool has_said = false;  ///< that a batch had no target

  /// Counts the step if its gradient was not finite, or its batch had no target, and says so in the metrics. A line of
  /// the first that had none; else empty.
  std::string note(StepMetrics& metrics, bool has_targets);
};

/// Error(non_finite) where a loss, or the norm of the gradients, is not finite: it names the micro-batch, its samples
/// and the rank that has computed it.
void check_finite(const Config& config, int ranks, std::int64_t step, const StepResult& result);

}  // namespace zs
