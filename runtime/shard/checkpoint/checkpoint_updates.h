#pragma once

#include <map>
#include <string>

#include "runtime/shard/checkpoint/checkpoint.h"

namespace zs {

/// What a checkpoint says beside tensors: the caller's attributes, and one of our own where parameters were updated
/// otherwise than once a step.
std::map<std::string, std::string> attributes_of(const TrainingState& state, const CheckpointInfo& info);
/// Takes that one out of `info`, and to the optimizer.
void take_updates(const TrainingState& state, CheckpointInfo& info);
/// The same for who has no optimizer.
void drop_updates(CheckpointInfo& info);

}  // namespace zs
