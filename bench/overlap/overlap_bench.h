#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/overlap/overlap_graph.h"
#include "bench/overlap/overlap_report.h"
#include "bench/step/step_bench.h"
#include "model/train/plan/plan.h"

namespace zs::bench {

/// Why nothing, or next to nothing, can hide on these GPUs, however good the schedule; empty where something can.
std::string why_nothing_hides(int ranks, const GpuRanks& gpus);

/// One rank of bench_overlap: the same step with communication, without it (null world), and its communication alone;
/// how much of the communication hid behind compute, and how much could have. On GPUs all times are the GPU's own. One
/// host thread uses it.
class OverlapBench {
 public:
  OverlapBench(World& world, const StepOptions& options, const Config& config, Machine machine = {});
  /// Collective; blocks the host. Times are rank 0's.
  OverlapReport run();

 private:
  struct Training;
  /// What a training's steps showed: medians.
  struct Steps {
    double ms = 0;                           ///< of one step; on a GPU from its first op's start to its last one's end
    double host_ms = 0;                      ///< of one step, by the host's clock
    double spread_ms = 0;                    ///< half of what lies between the fastest and the slowest
    std::vector<double> compute_op_ms = {};  ///< of each op of the compute stream
    std::map<NumberedOps::Key, double> offload_ms = {};  ///< of each copy between host and device: the least
    std::map<std::string, double> phase_ms = {};         ///< of each phase
  };
  /// The compute stream of a step.
  struct ComputeTimes {
    std::vector<double> op_ms;
    std::map<std::string, double> phase_ms;
  };
  /// What the ops of one stream of a plan's step are called, and their phases.
  struct ComputeOps {
    explicit ComputeOps(const TrainPlan& plan);
    std::vector<NumberedOps::Key> keys;
    std::vector<std::string> phases;
  };
  /// In milliseconds: the least of several.
  using CommunicationPrices = std::map<NumberedOps::Key, double>;

  /// Whether both models may be in memory at once. Collective.
  bool fit_both();
  DeviceOptions device_options() const;
  std::unique_ptr<Training> start_connected();
  std::unique_ptr<Training> start_alone();
  /// The duration in milliseconds, until all ranks have done it.
  double step(Training& training);
  void profile_step(Training& training);
  /// Each step of one is followed by the same step of the next, so that what slows the machine for a while slows all of
  /// them.
  void take_turns(const std::vector<Training*>& trainings);
  Steps medians(const Training& training) const;
  ComputeTimes compute_times(const Training& training) const;
  /// What one more step asks of the executor.
  std::vector<Action> log_step(Training& training);
  /// Does that again without the model, one action after the other.
  CommunicationPrices measure_communication(Session& session, const std::vector<Action>& actions);
  /// What each op of the step's compute stream takes where nothing is moved. One that only a step with offload has
  /// takes what it took there.
  std::vector<double> compute_prices(const Steps& steps, const Steps& compute) const;
  /// Of each op of the plan that moves something: how long it takes alone.
  std::map<const TraceEntry*, double> moving_prices(const Steps& steps, const CommunicationPrices& prices) const;
  OverlapReport report(const Steps& steps, const Steps& compute, const CommunicationPrices& prices) const;

  bool is_on_gpus() const { return plan_.device == DeviceKind::cuda; }

  World& world_;
  StepOptions options_;
  Config config_;
  Machine machine_;
  CpuShare share_;
  Config alone_config_;  // what the host keeps is on the device
  TrainPlan plan_, alone_plan_;
  ComputeOps ops_, alone_ops_;
  std::string gpu_, transport_;  // of the step as it is
};

}  // namespace zs::bench
