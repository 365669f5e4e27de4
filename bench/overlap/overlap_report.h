#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/overlap/overlap_graph.h"

namespace zs::bench {

/// What bench_overlap found out on rank 0; docs/benchmarks.md says what each field means.
struct OverlapReport {
  struct Phase {
    std::string name = {};
    double compute_ms = 0;        ///< without communication
    double communication_ms = 0;  ///< alone, of what the phase asks for
    double step_ms = 0;           ///< as the step runs
    double planned_exposed_ms =
        0;  ///< what compute waits for where nothing disturbs anything: the plan's own graph, priced
    double exposed_ms() const { return step_ms - compute_ms; }
    /// What of the communication the graph could hide. Below 0 in a phase that waits for what an earlier one has asked
    /// for.
    double hideable_ms() const { return communication_ms - planned_exposed_ms; }
    double hidden_ms() const { return communication_ms - exposed_ms(); }
  };
  /// All that a step moves on streams of one kind.
  struct Kind {
    std::string name = {};
    double ms = 0;           ///< alone
    double hideable_ms = 0;  ///< of it, where nothing else is moved, on paper
  };
  std::string preset = {}, dtype = {}, transport = {}, strategy = {};
  std::string gpu =
      {};  ///< the name of rank 0's, whose own clock all times are of; empty: the CPU, whose are the host's
  int ranks = 1, threads = 1;
  std::int64_t micro_batch = 0, micro_batches = 0, sequence = 0;
  std::int64_t prefetch = 0, limit = 0, max_reductions_in_flight = 0;
  std::string reshard_after_forward = {};  ///< as configured
  std::vector<Phase> phases = {};
  std::vector<Kind> kinds = {};                  ///< gathers, reductions, offload
  Phase step = {};                               ///< all of it
  bool takes_turns = false;                      ///< each step was followed by the same without communication
  double host_compute_ms = 0, host_step_ms = 0;  ///< of a step, by the host's clock
  double spread_ms = 0;                          ///< by how much timed steps differ among themselves, to either side
  std::string note = {};  ///< why nothing can hide here, whatever the schedule; empty: something can
  Simulation plan = {};   ///< the plan's graph, priced with compute and communication alone

  /// What has to be hideable for its part to say something: 1 % of the step on paper, and more than steps differ by.
  double least_ms() const { return std::max(0.01 * plan.step_ms, spread_ms); }
  /// Of a phase, or the step. Negative when it takes longer than compute and communication one after the other. Nothing
  /// where less than that can be hidden.
  std::optional<double> efficiency(const Phase& phase) const {
    if (phase.hideable_ms() <= least_ms()) return std::nullopt;
    return phase.hidden_ms() / phase.hideable_ms();
  }
};

std::string to_json(const OverlapReport& report);  ///< one line, without its end
std::string to_text(const OverlapReport& report);
/// One row of a sweep, and the lines above it.
std::string sweep_header();
std::string sweep_row(const OverlapReport& report);

}  // namespace zs::bench
