#pragma once

#include <string>
#include <vector>

#include "bench/step/step_bench.h"

namespace zs::bench {

/// A job that the table is about; nothing of it runs.
struct TrafficOptions {
  std::int64_t ranks = 8, group = 4;  ///< of a small group, for the strategies that have one
};

/// What one strategy costs a rank in a step, read off its plan: bytes that it sends, and bytes that it holds.
struct TrafficRow {
  std::string strategy;
  std::int64_t parameters_sent = 0, gradients_sent = 0;
  std::int64_t left_group = 0;  ///< of both: sent to ranks of other small groups
  std::int64_t between_steps = 0, peak = 0;
};

/// One row for each strategy, of the same model and batch, on the meta device. Throws Error(config) where ranks or
/// groups do not divide.
std::vector<TrafficRow> traffic_rows(const StepOptions& step, const TrafficOptions& options);
std::string traffic_table(const StepOptions& step, const TrafficOptions& options);

}  // namespace zs::bench
