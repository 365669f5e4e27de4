#include "runtime/shard/optimizers/adamw.h"

#include <fmt/format.h>

#include <cmath>

#include "runtime/base/usage_error.h"

namespace zs {

const AdamWConfig& checked_adamw(const char* optimizer, const AdamWConfig& config) {
  for (const float beta : {config.beta1, config.beta2})
    if (!(beta >= 0 && beta < 1))
      throw UsageError(fmt::format("{}: a beta of {}", optimizer, beta), "pass 0 or more, and less than 1");
  if (!(config.eps > 0) || !std::isfinite(config.eps))
    throw UsageError(fmt::format("{}: an eps of {}", optimizer, config.eps), "pass a small number above 0");
  return config;
}

AdamW::AdamW(Executor& executor, const AdamWConfig& config)
    : Optimizer(executor,
                {.name = "AdamW",
                 .state = {"m", "v"},
                 .settings = {{"AdamW's beta1", fmt::to_string(config.beta1)},
                              {"AdamW's beta2", fmt::to_string(config.beta2)},
                              {"AdamW's eps", fmt::to_string(config.eps)}},
                 .correction = {StepCorrection::Kind::adamw, config.beta1, config.beta2}},
                shared_options(checked_adamw("AdamW", config))),
      config_(config) {}

Optimizer::UnitUpdate AdamW::unit_update() const {
  return [&kernels = kernels(), config = config_](ExecContext& exec, const std::vector<Slice>& slices) {
    kernels.update(exec, Slice::ranges_of(slices), AdamWOptions{config.beta1, config.beta2, config.eps});
  };
}

}  // namespace zs
