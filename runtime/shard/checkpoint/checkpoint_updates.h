#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "runtime/shard/checkpoint/checkpoint.h"

namespace zs {

/// Attributes of a checkpoint: the caller's, and our own. These are numbers of updates, of parameters that were updated
/// otherwise than once a step; sums of squared learning rates, of an optimizer that has them; and, where the masters
/// are not the weights that a model is used with (Optimizer::Evaluation), how these follow; and whether the weights of
/// frozen units are left out.
std::map<std::string, std::string> attributes_of(const TrainingState& state, const CheckpointInfo& info);
/// True if a checkpoint with these has the weights of frozen units.
bool holds_frozen(const std::map<std::string, std::string>& attributes);
/// Takes our own out of `info`, and to the optimizer.
void take_updates(const TrainingState& state, CheckpointInfo& info);
/// Takes our own attributes out of `info`, for whoever has no optimizer.
void drop_updates(CheckpointInfo& info);

/// Rule by which the weights that a model is used with follow from a checkpoint's masters and a state of the same
/// elements.
struct SavedEvaluation {
  std::string state;  ///< kind of a tensor: "schedulefreeadamw.offset"; what has no such tensor is as its master
  float factor;
  /// masters := masters + factor * state, on the host, by the kernels and so with the bits of
  /// Optimizer::swap_average().
  void apply(float* masters, const float* state_of_them, std::int64_t count) const;
};
/// Nothing where the masters are these weights.
std::optional<SavedEvaluation> saved_evaluation(const std::map<std::string, std::string>& attributes);

}  // namespace zs
