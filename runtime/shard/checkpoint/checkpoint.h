#pragma once

#include <map>
#include <string>

#include "comm/together.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "runtime/shard/execute/executor.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// State that is saved and loaded: on each rank the shards that it holds.
struct TrainingState {
  /// UsageError where the optimizer is another model's.
  TrainingState(World& of_world, Executor& of_executor, Optimizer& of_optimizer);

  World& world;
  Executor& executor;
  Optimizer& optimizer;
};

/// Facts that a checkpoint holds beside tensors. Random numbers are counted from (seed, step ...), so the attributes
/// that name the seed and the position in the data are all of their state.
struct CheckpointInfo {
  std::int64_t step = 0;  ///< steps done
  std::map<std::string, std::string> attributes = {};
  /// Holds the weights of frozen units (UnitPolicy::is_frozen) too. Else those stay as they are in a load: fill them
  /// before, from where they come from.
  bool with_frozen = true;
};

/// Writes ROOT/step-N, N the step, and returns its path. Collective; blocks; call between steps: a UsageError where
/// gradients wait for the optimizer, which would be lost. Each rank writes what it holds, of replicas exactly one. The
/// folder has another name until every byte of it is on the disk (docs/checkpoints.md); whatever happens before leaves
/// older checkpoints as they are. Values that are not finite are refused. Throws AgreedError: nothing was saved, and
/// what was written is removed. Memory: one block of DataFileWriter.
std::string save(const TrainingState& state, const std::string& root, const CheckpointInfo& info,
                 FileWatch* watch = nullptr);

/// Fills the shards from a checkpoint, however many ranks, units and shards it was written by, and returns what was
/// saved with it. Collective; blocks; call before the first step or between steps. Every parameter must be there with
/// its shape, and none beside. Throws AgreedError: the state may be half loaded. Memory: one block, one file's table of
/// checksums, and the manifest.
CheckpointInfo load(const TrainingState& state, const std::string& folder);

/// Loads the weights alone, without an optimizer, otherwise as `load`: for evaluating a model or sampling from it, so
/// that they are those for use (Optimizer::Evaluation). Moments are not read.
CheckpointInfo load_weights(World& world, Executor& executor, const std::string& folder);

}  // namespace zs
