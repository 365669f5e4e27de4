#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "runtime/shard/runtime/sharded_runtime.h"

namespace zs {

/// Options of load_safetensors.
struct WeightFileOptions {
  /// Gives the name by which a file calls a parameter or buffer of this name; none: the same. Where it gives an empty
  /// text, the value stays as it is, and nothing is missing: of a new head.
  std::function<std::string(const std::string& name)> name_in_file = {};
  /// Makes a parameter that the file lacks, or a tensor that the model does not know, an error; else it is reported.
  bool strict = true;
};

/// Names that load_safetensors did not load.
struct WeightFileReport {
  std::vector<std::string> missing;     ///< parameters that the file lacks, by their names in the model
  std::vector<std::string> unexpected;  ///< tensors that no parameter is called
};

/// Master weights and buffers from a safetensors file of F32, F16 or BF16, an index of several (NAME.json), or a folder
/// that has model.safetensors or its index. Rank 0 reads a unit at a time, and no rank holds more than that beside its
/// shards; every rank reads the header, so the path names the same file on all. Optimizers keep their state.
/// Collective; blocks; between steps. Throws Error(model) on every rank before anything is changed: a file that is
/// damaged, another shape, or, where it is strict, names that do not match.
WeightFileReport load_safetensors(World& world, ShardedRuntime& runtime, const std::string& path,
                                  const WeightFileOptions& options = {});

/// Writes master weights and buffers by their names, in f32; rank 0 does, a unit at a time. The file appears whole, or
/// not at all. Collective; blocks; between steps. Throws Error(cannot_create) or Error(io) on every rank.
void save_safetensors(World& world, ShardedRuntime& runtime, const std::string& path);

}  // namespace zs
