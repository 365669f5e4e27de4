#include "model/train/trainer/step_numbers.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "model/train/config/schedule.h"

namespace zs {

StepMetrics step_metrics(const Config& config, std::int64_t step, const StepResult& result, double seconds) {
  const std::int64_t tokens = config.train.global_batch * config.train.sequence;
  std::optional<StepMetrics::Rewards> rewards;
  if (const auto& means = result.preference) rewards = {means->chosen, means->rejected, means->accuracy};
  return {.step = step,
          .loss = static_cast<float>(std::accumulate(result.losses.begin(), result.losses.end(), 0.0) /
                                     static_cast<double>(result.losses.size())),
          .grad_norm = result.grad_norm,
          .lr = learning_rate(config.train, step - 1),
          .tokens = step * tokens,
          .tokens_per_s = static_cast<double>(tokens) / seconds,
          .step_ms = seconds * 1e3,
          .peak_bytes = result.peak_bytes,
          .allocations = result.allocations,
          .val_loss = std::nullopt,
          .data_wait_ms = static_cast<double>(result.data_wait_ns) * 1e-6,
          .host_bytes = result.host_bytes,
          .rewards = rewards,
          .lost_updates = result.lost_updates,
          .mixtures = result.mixtures};
}

std::string SkippedSteps::note(StepMetrics& metrics, bool has_targets) {
  count += has_targets && std::isfinite(metrics.grad_norm) ? 0 : 1;
  metrics.skipped_steps = count;
  if (has_targets || std::exchange(has_said, true)) return "";
  return fmt::format(
      "step {}: no token of its batch is a target, and nothing is updated; skipped_steps counts such steps",
      metrics.step);
}

void check_finite(const Config& config, int ranks, std::int64_t step, const StepResult& result) {
  const char* const advice = "lower train.lr, lengthen train.warmup, or look at the data named here";
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    if (std::isfinite(result.losses[i])) continue;
    const std::int64_t micro_batch = static_cast<std::int64_t>(i);
    const std::int64_t first = (step - 1) * config.train.global_batch + micro_batch * config.train.micro_batch;
    throw Error(ExitCode::non_finite, "the loss is not finite",
                fmt::format("micro-batch {}, samples {} to {}, computed by rank {}", micro_batch, first,
                            first + config.train.micro_batch - 1,
                            micro_batch % data_shares(config, ranks) * config.tensor.parallel),
                advice);
  }
  if (std::isfinite(result.grad_norm)) return;
  throw Error(ExitCode::non_finite,
              fmt::format("the gradient norm is {} though every loss is finite", result.grad_norm), "all micro-batches",
              advice);
}

}  // namespace zs
