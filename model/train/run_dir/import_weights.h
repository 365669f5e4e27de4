#pragma once

#include <memory>
#include <vector>

#include "comm/world.h"
#include "model/train/config/config.h"
#include "model/train/plan/plan.h"
#include "model/weights/weight_import.h"
#include "runtime/shard/executor.h"

namespace zs {

/// The weights in the folder `model.path`, checked against the planned model: every parameter is there, and nothing
/// else. Error(model).
std::unique_ptr<WeightImport> open_weights(const Config& config, const TrainPlan& plan);

/// The same of the file that a run's end has left, in which parameters have their own names (weights.h).
std::unique_ptr<WeightImport> open_run_weights(const std::string& path, const TrainPlan& plan);

/// Fills the master shards from files: each rank reads what it holds of each parameter, straight into its shard, or by
/// the piece where that is in a GPU's memory. Collective; blocks; call before the first step. Throws AgreedError: the
/// state may be half loaded.
void import_weights(World& world, Executor& executor, WeightImport& weights);

}  // namespace zs
