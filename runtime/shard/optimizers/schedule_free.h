#pragma once

#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// Configuration of ScheduleFreeAdamW.
struct ScheduleFreeConfig {
  float beta1 = 0.9f;  ///< above 0: how near to the average gradients are taken
  float beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  float clip = 1.0f;  ///< as in OptimizerOptions, like the next two
  bool order_free = false;
  std::vector<ParameterGroup> groups = {};
  float average = 0;         ///< none but its own
  bool in_backward = false;  ///< not with its average
};

/// Schedule-free AdamW (Defazio et al. 2024): steps move a point z, their average x is what is trained, and gradients
/// are taken at y = (1 - beta1) z + beta1 x, so that no schedule needs to end the run. The masters are y; the states
/// are "schedulefreeadamw.offset", z - y, and "schedulefreeadamw.v"; x is Definition::evaluation. Of step t's learning
/// rate lr_t the newest z weighs lr_t^2 / (lr_1^2 + ... + lr_t^2) in x.
class ScheduleFreeAdamW final : public Optimizer {
 public:
  ScheduleFreeAdamW(Executor& executor, const ScheduleFreeConfig& config);

 private:
  UnitUpdate unit_update() const override;
  bool copies() const override { return true; }

  ScheduleFreeConfig config_;
};

}  // namespace zs
