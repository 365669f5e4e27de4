#pragma once

#include <memory>
#include <vector>

#include "comm/world.h"
#include "model/train/config/config.h"
#include "model/train/plan/plan.h"
#include "model/weights/weight_import.h"
#include "runtime/shard/execute/executor.h"

namespace zs {

/// Files that a model begins from; the first that has a parameter counts. None: it draws its weights.
using WeightImports = std::vector<std::unique_ptr<WeightImport>>;

/// The weights in the folder `model.path`, checked against the planned model: every parameter is there, and nothing
/// else; and the adapter in `lora.path`, in the same way. Of adapters without that nothing is there. Error(model).
WeightImports open_weights(const Config& config, const TrainPlan& plan);

/// Opens the weights of the model alone, in `folder`.
std::unique_ptr<WeightImport> open_model_weights(const Config& config, const TrainPlan& plan,
                                                 const std::string& folder);

/// Opens the file that a run's end has left, in which parameters have their own names (weights.h), and the folder of
/// those that it leaves out, which `checks` compares with what the file says of it; otherwise as above.
WeightImports open_run_weights(const Config& config, const TrainPlan& plan, const std::string& path, bool checks);

/// True if one of the files has the parameter.
bool has_parameter(const WeightImports& weights, const std::string& parameter);

/// Fills the master shards, and frozen weights, from files: each rank reads what it holds of each parameter, straight
/// into its shard, or by the piece where that is in a GPU's memory or not f32. What no file has stays as it was drawn.
/// Collective; blocks; call before the first step. Throws AgreedError: the state may be half loaded.
void import_weights(World& world, Executor& executor, const WeightImports& weights);

}  // namespace zs
