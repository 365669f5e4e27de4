#pragma once

#include <string>

#include "runtime/shard/execute/executor.h"

namespace zs {

/// Gathers the f32 weights unit by unit, hashes them and, where `path` is not empty, has rank 0 write them as a
/// safetensors file. Collective; blocks. Returns 16 hex digits: XXH3 of every parameter's (name, values), in the order
/// of names, so that it does not depend on ranks, units or layout.
std::string save_weights(Executor& executor, const std::string& path);

}  // namespace zs
