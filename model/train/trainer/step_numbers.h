#pragma once

#include <cstdint>

#include "model/train/config/config.h"
#include "model/train/run_dir/metrics.h"
#include "model/train/session/session.h"

namespace zs {

/// Metrics of a step that took so long, as metrics.jsonl has them, but for its validation and the steps that were
/// skipped.
StepMetrics step_metrics(const Config& config, std::int64_t step, const StepResult& result, double seconds);

/// Error(non_finite) where a loss, or the norm of the gradients, is not finite: it names the micro-batch, its samples
/// and the rank that has computed it.
void check_finite(const Config& config, int ranks, std::int64_t step, const StepResult& result);

}  // namespace zs
