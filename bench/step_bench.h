#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/step_report.h"
#include "comm/world.h"
#include "model/train/session.h"
#include "runtime/device/cpu_topology.h"
#include "runtime/device/device.h"

namespace zs {
struct TrainPlan;
}  // namespace zs

namespace zs::bench {

/// The command line of bench_step.
struct StepOptions {
  std::string preset = "124M", dtype = "f32";
  std::int64_t micro_batch = 4, sequence = 256, micro_batches = 1;  ///< micro_batches a rank and step
  std::int64_t steps = 5, warmup = 2, profile_steps = 2;
  std::vector<std::string> settings;  ///< "key=value" of the configuration, over what follows from the rest
};

/// The configuration that a trainer would have for these options. Throws Error(usage).
Config step_config(const StepOptions& options, int ranks);

/// Random tokens, drawn by (train.seed, sample, position).
ReadSamples made_up_samples(const Config& config);

/// One rank of bench_step: the ceiling, a model on made-up tokens, timed steps, profiled steps, the ceiling again. One host thread
/// uses it.
class StepBench {
 public:
  StepBench(World& world, const StepOptions& options, const Config& config);
  /// Collective; blocks the host. The report is whole on rank 0.
  StepReport run();

 private:
  void run_steps(Device& device, const TrainPlan& plan, StepReport& report);
  void time_steps(Session& session, StepReport& report);
  StepProfile profile_steps(Session& session);
  /// The duration in milliseconds.
  double step(Session& session, StepReport& report);

  World& world_;
  StepOptions options_;
  const Config& config_;
  CpuShare share_;
  std::int64_t step_ = 0;
};

}  // namespace zs::bench
