#include "runtime/shard/optimizers/schedule_free.h"

#include <fmt/format.h>

#include "runtime/base/usage_error.h"
#include "runtime/shard/optimizers/adamw.h"

namespace zs {
namespace {

const ScheduleFreeConfig& checked(const ScheduleFreeConfig& config) {
  checked_adamw("ScheduleFreeAdamW", {.beta1 = config.beta1, .beta2 = config.beta2, .eps = config.eps});
  if (config.beta1 == 0)
    throw UsageError("ScheduleFreeAdamW: a beta1 of 0, where gradients say nothing of the average", "pass more than 0");
  return config;
}

}  // namespace

ScheduleFreeAdamW::ScheduleFreeAdamW(Executor& executor, const ScheduleFreeConfig& config)
    : Optimizer(executor,
                {.name = "ScheduleFreeAdamW",
                 .state = {"offset", "v"},
                 .settings = {{"ScheduleFreeAdamW's beta1", fmt::to_string(checked(config).beta1)},
                              {"ScheduleFreeAdamW's beta2", fmt::to_string(config.beta2)},
                              {"ScheduleFreeAdamW's eps", fmt::to_string(config.eps)}},
                 .evaluation = Evaluation{0, (config.beta1 - 1) / config.beta1},
                 .correction = {StepCorrection::Kind::schedule_free, config.beta1, config.beta2}},
                shared_options(config)),
      config_(config) {}

Optimizer::UnitUpdate ScheduleFreeAdamW::unit_update() const {
  return [&kernels = kernels(), config = config_](ExecContext& exec, const std::vector<Slice>& slices) {
    kernels.update(exec, Slice::ranges_of(slices), ScheduleFreeOptions{config.beta1, config.beta2, config.eps});
  };
}

}  // namespace zs
