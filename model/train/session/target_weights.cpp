#include "model/train/session/target_weights.h"

#include <algorithm>

#include "runtime/tensor/reduction.h"

namespace zs {

TargetWeights weigh_targets(std::span<const std::int32_t> targets, std::int64_t sequence, LossPer per) {
  TargetWeights weights;
  for (std::size_t first = 0; first < targets.size(); first += static_cast<std::size_t>(sequence)) {
    const auto own = targets.subspan(first, static_cast<std::size_t>(sequence));
    const auto counted = sequence - std::count(own.begin(), own.end(), kIgnoredTarget);
    const float one =
        per == LossPer::tokens || counted == 0 ? 1.0f : static_cast<float>(sequence) / static_cast<float>(counted);
    for (const std::int32_t target : own) weights.each.push_back(target == kIgnoredTarget ? 0.0f : one);
    weights.all += static_cast<double>(per == LossPer::tokens || counted == 0 ? counted : sequence);
  }
  return weights;
}

TargetWeights weigh_targets(const Config& config, const SampleBatch& batch) {
  if (!config.data.has_ignored_targets) return {};
  return weigh_targets(batch.targets, config.train.sequence,
                       config.train.loss == "sequences" ? LossPer::sequences : LossPer::tokens);
}

}  // namespace zs
