#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/world.h"
#include "model/train/config/config.h"
#include "model/train/plan/gpu_ranks.h"
#include "model/train/plan/plan.h"
#include "model/train/rank/watch.h"
#include "model/train/run_dir/import_weights.h"
#include "model/train/run_dir/saved_model.h"
#include "model/train/session/session.h"
#include "runtime/device/cpu_topology.h"

namespace zs {

/// One rank of what reads a model's weights and trains nothing: its device, with memory by a plan, and a session with
/// the weights of a checkpoint in shards. One host thread uses it; `world` outlives it.
class Inference {
 public:
  Inference(World& world, const Config& config, const SavedModel& model);

  /// Collective: 0, or the exit code of all ranks, of which one has printed why. `work` is what will be done, on any
  /// session, the meta device's too: it goes through every size of micro-batch. The weights are those of the checkpoint
  /// that the first rank has found.
  int start(const std::function<void(Session&)>& work);

  /// The exit code of this rank, the results being printed: says why where they were lost, or the work was stopped on
  /// request.
  int end(bool is_stopped) const;

  /// Limits the sequence before the start: none will have more tokens than so many. What is planned for, and kept,
  /// becomes less.
  void limit_sequence(std::int64_t tokens) { config_.train.sequence = std::min(config_.train.sequence, tokens); }

  World& world() { return world_; }
  const Config& config() const { return config_; }
  const SavedModel& model() const { return model_; }
  const RankWatch& watch() const { return watch_; }
  Session& session() { return *session_; }
  bool is_first() const { return world_.rank() == 0; }

 private:
  /// A strategy for any number of ranks.
  void adapt_to_ranks();
  void plan(const std::function<void(Session&)>& work);
  void open_frozen();
  void check_memory() const;
  int load();

  World& world_;
  RankWatch watch_;
  Config config_;
  SavedModel model_;
  CpuShare share_;
  GpuRanks gpus_;
  TrainPlan plan_;
  WeightImports weights_;  // weights of files, also those that a checkpoint leaves out, until they are in the shards
  std::unique_ptr<RankDevice> device_;
  std::unique_ptr<Session> session_;
};

}  // namespace zs
