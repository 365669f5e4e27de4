#pragma once

#include <string>
#include <vector>

#include "runtime/device/profile.h"

namespace zs::bench {

/// Where the steps of one rank went, each number the mean of one step.
struct StepProfile {
  struct Row {
    StreamRole stream;
    std::string
        op;  ///< OpInfo::name without the unit: "all_gather" of "all_gather(blocks.3)"; of a wait "wait for unshard"
    bool is_wait;
    double calls, ms;
  };
  int steps = 0;
  double step_ms = 0;
  double busy_ms = 0, waiting_ms = 0;  ///< of the compute stream: in ops, in waits for the events of other streams
  std::vector<Row> rows = {};          ///< by stream, then the longest first

  /// Of the compute stream: with nothing enqueued.
  double idle_ms() const { return step_ms - busy_ms - waiting_ms; }
};

/// Sums up what was recorded in `steps` steps that took `window_ms` together.
StepProfile summarise(const Profile& profile, int steps, double window_ms);

}  // namespace zs::bench
