#pragma once

#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// Configuration of Lion.
struct LionConfig {
  float beta1 = 0.9f, beta2 = 0.99f, weight_decay = 0.1f;
  float clip = 1.0f;  ///< as in OptimizerOptions, like the next four
  bool order_free = false;
  std::vector<ParameterGroup> groups = {};
  float average = 0;
  bool in_backward = false;
};

/// Lion (Chen et al. 2023): steps of one length, in the direction of a momentum's sign. One moment, "lion.m".
class Lion final : public Optimizer {
 public:
  /// UsageError where a beta is not from 0 to below 1.
  Lion(Executor& executor, const LionConfig& config);

 private:
  UnitUpdate unit_update() const override;
  bool copies() const override { return true; }

  LionConfig config_;
};

}  // namespace zs
