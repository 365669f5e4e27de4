#pragma once

#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// Configuration of AdamW.
struct AdamWConfig {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  float clip = 1.0f;  ///< as in OptimizerOptions, like the next four
  bool order_free = false;
  std::vector<ParameterGroup> groups = {};
  float average = 0;
  bool in_backward = false;
};

/// The config. UsageError, in the name of an optimizer, where a beta or eps is none.
const AdamWConfig& checked_adamw(const char* optimizer, const AdamWConfig& config);

/// AdamW (Loshchilov, Hutter 2019). Each parameter's bias correction goes by how many steps have updated it.
class AdamW final : public Optimizer {
 public:
  AdamW(Executor& executor, const AdamWConfig& config);

  Buffer first_moment(std::size_t unit) const { return state(0, unit); }
  Buffer second_moment(std::size_t unit) const { return state(1, unit); }

 private:
  UnitUpdate unit_update() const override;
  bool copies() const override { return true; }

  AdamWConfig config_;
};

}  // namespace zs
