#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "model/train/plan/plan.h"
#include "runtime/shard/execute/executor.h"

namespace zs {

/// File of the final weights.
struct WeightsFile {
  std::string path = {};  ///< empty: none is written
  /// Attributes that name the folder of the frozen weights (FrozenWeights), which are left out then; none: all are
  /// written.
  std::map<std::string, std::string> frozen = {};
};

/// Gathers the f32 weights unit by unit, hashes them and has rank 0 write them as a safetensors file. Collective;
/// blocks. Returns 16 hex digits: XXH3 of every parameter's (name, values), in the order of names, written or not, so
/// that it does not depend on ranks, units or layout.
std::string save_weights(Executor& executor, const WeightsFile& file = {});

/// Elements of a unit's parameters, of which a rank may own a part.
std::int64_t whole_elems(const UnitLayout& layout);
/// Bytes of the values that are written.
std::int64_t saved_bytes(const TrainPlan& plan, bool with_frozen);

}  // namespace zs
