#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/data/output_file.h"
#include "model/train/profile/step_parts.h"
#include "runtime/device/device.h"

namespace zs {

/// Request to look at steps: which ones, and what becomes of them.
struct ExplainRequest {
  static constexpr std::int64_t kDefaultSteps = 10, kDefaultTracedSteps = 3, kMostSteps = 10000;
  std::int64_t steps = 0;  ///< 0: none; those after the first, which is slow in other ways
  bool prints = false;     ///< prints where their time went
  std::string trace;       ///< a file for them in the Trace Event Format; empty: none
  bool is_wanted() const { return steps > 0; }
};

/// Times some steps of this rank while they run, and says where their time went. One host thread uses it.
class StepExplainer {
 public:
  /// Error(cannot_create) where the trace cannot be written, or would replace what is no trace, or one of `reads`.
  explicit StepExplainer(ExplainRequest request, std::vector<std::string> reads = {});

  /// Starts before the first step. `sequence`: as StepParts has it.
  void start(Device& device, const StepCeilings& ceilings, std::int64_t sequence);
  void begin_step(std::int64_t step);
  /// The step is done, and its device idle.
  void end_step();
  /// The step was dropped.
  void drop_step();
  /// Calls `read`, and notes its time as reading samples.
  void timed_read(const std::function<void()>& read);
  bool has_all() const { return seen_ >= 1 + request_.steps; }
  /// Text to be printed about the steps so far, once; writes their trace. Throws Error(io).
  std::string finish(int rank);

 private:
  ExplainRequest request_;
  std::optional<OutputFile> trace_;
  Device* device_ = nullptr;
  StepCeilings ceilings_;
  std::int64_t seen_ = 0, first_ = 0, last_ = 0;
  bool is_timing_ = false, is_done_ = false;
  StepTimes now_;
  StepParts parts_;
  std::vector<StepTimes> steps_;  // for the trace
};

}  // namespace zs
