#pragma once

#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// Configuration of Sgd.
struct SgdConfig {
  float momentum = 0;  ///< 0: no state
  bool nesterov = false;
  float weight_decay = 0;
  float clip = 0;  ///< as in OptimizerOptions, like the next four
  bool order_free = false;
  std::vector<ParameterGroup> groups = {};
  float average = 0;
  bool in_backward = false;
};

/// Stochastic gradient descent with momentum (Sutskever et al. 2013, as PyTorch writes it): g = grad + weight_decay w,
/// m = momentum m + g, w -= lr m; nesterov: w -= lr (g + momentum m).
class Sgd final : public Optimizer {
 public:
  Sgd(Executor& executor, const SgdConfig& config);

 private:
  UnitUpdate unit_update() const override;
  bool copies() const override { return true; }

  SgdConfig config_;
};

}  // namespace zs
