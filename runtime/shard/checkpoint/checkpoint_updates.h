#pragma once

#include <map>
#include <string>

#include "runtime/shard/checkpoint/checkpoint.h"

namespace zs {

/// Attributes that a checkpoint holds beside tensors: the caller's, and one of our own where parameters were updated
/// otherwise than once a step.
std::map<std::string, std::string> attributes_of(const TrainingState& state, const CheckpointInfo& info);
/// Takes that one out of `info`, and to the optimizer.
void take_updates(const TrainingState& state, CheckpointInfo& info);
/// Takes our own attribute out of `info`, for whoever has no optimizer.
void drop_updates(CheckpointInfo& info);

}  // namespace zs
