#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/machine.h"
#include "bench/step/step_report.h"
#include "comm/world.h"
#include "model/train/plan/plan.h"
#include "model/train/session/session.h"
#include "runtime/device/device.h"

namespace zs::bench {

constexpr float kLearningRate = 1e-4f;  ///< of every timed step

/// The command line of bench_step.
struct StepOptions {
  std::string preset = "124M", dtype = "f32";
  std::int64_t micro_batch = 4, sequence = 256, micro_batches = 1;  ///< micro_batches a rank and step
  std::int64_t steps = 5, warmup = 2, profile_steps = 2;
  std::vector<std::string> settings = {};  ///< "key=value" of the configuration, over what follows from the rest
  std::string needs_gpus = {};             ///< the flag that means nothing on the CPU; empty: none was given
};

/// The configuration that a trainer would have for these options. Throws Error(usage).
Config step_config(const StepOptions& options, int ranks);

/// Random tokens, drawn by (train.seed, sample, position).
ReadSamples made_up_samples(const Config& config);

/// One rank of bench_step: the ceiling, a model on made-up tokens, timed steps, profiled steps, the ceiling again, on
/// the CPU or on a GPU a rank as the configuration says. One host thread uses it.
class StepBench {
 public:
  StepBench(World& world, const StepOptions& options, const Config& config, Machine machine = {});
  /// Collective; blocks the host. The report is whole on rank 0.
  StepReport run();

 private:
  DeviceOptions device_options() const { return machine_.device_options(config_, share_); }
  /// The best product so far, in GFLOP/s. No device of this rank's GPU lives beside it.
  void measure_ceiling(StepReport& report);
  void run_steps(Device& device, const TrainPlan& plan, const NcclOptions& nccl, StepReport& report);
  /// What the ranks exchange numbers over, beside `device`.
  Ranks ranks_beside(Device& device) { return {world_, host_device_ ? *host_device_ : device}; }
  void time_steps(Session& session, StepReport& report);
  StepProfile profile_steps(Session& session);
  /// The duration in milliseconds.
  double step(Session& session, StepReport& report);

  World& world_;
  StepOptions options_;
  const Config& config_;
  Machine machine_;
  CpuShare share_;
  std::unique_ptr<Device> host_device_;  // where the ranks compute on GPUs
  std::int64_t step_ = 0;
};

}  // namespace zs::bench
