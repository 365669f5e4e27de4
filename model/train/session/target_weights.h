#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/data/sample_batch.h"
#include "model/train/config/config.h"

namespace zs {

/// Unit that counts alike in a step's loss.
enum class LossPer : std::uint8_t { tokens, sequences };

/// Weights of the targets of a micro-batch in its loss.
struct TargetWeights {
  std::vector<float> each;  ///< 0 where the target is kIgnoredTarget
  double all = 0;           ///< their sum: integers, as exact as those
};

/// Weights of targets. By tokens each target that counts weighs 1. By sequences those of each sequence, of `sequence`
/// targets, together weigh as many as it has targets, unless none of them counts.
TargetWeights weigh_targets(std::span<const std::int32_t> targets, std::int64_t sequence, LossPer per);
/// Weights of a micro-batch's targets by `train.loss`; nothing where each of them counts.
TargetWeights weigh_targets(const Config& config, const SampleBatch& batch);

}  // namespace zs
