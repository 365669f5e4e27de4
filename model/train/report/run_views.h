#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/train/report/run_record.h"
#include "model/train/run_dir/event_file.h"
#include "model/train/run_dir/run_mark.h"

namespace zs {

/// Views that a run shows of itself beside metrics.jsonl: report.html, and TensorBoard's file of events. They never end
/// a run: what cannot be written is a warning, and is left out from then on. Rank 0's; one thread uses it.
class RunViews {
 public:
  /// `record`: of the steps that are done. Lists what it writes in `mark`, which outlives it.
  RunViews(std::string dir, RunMark& mark, RunRecord record, bool writes_events);

  void add(const StepMetrics& metrics);
  void add_validation(const StepMetrics& metrics);
  /// Writes the report, unless it would then take more than a hundredth of the time; the first steps show at once.
  void refresh();
  /// The run's end: writes it in any case.
  void end(RunState state, const std::string& detail);
  /// Since the last call.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

 private:
  using Clock = std::chrono::steady_clock;
  void write_report();
  /// Calls `write`; where that throws, `view` is over.
  template <class Write>
  void attempt(const char* view, bool& is_on, const Write& write);
  /// True if this run may write `name`.
  bool may_write(const char* name);

  std::string dir_;
  RunMark& mark_;
  RunRecord record_;
  bool has_report_ = true, has_events_;
  std::optional<EventFile> events_;
  Clock::time_point written_ = Clock::now() - std::chrono::hours(1);
  Clock::duration cost_{};
  bool has_shown_steps_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace zs
