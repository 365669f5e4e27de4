#include "runtime/shard/optimizers/lion.h"

#include <fmt/format.h>

#include "runtime/base/usage_error.h"

namespace zs {
namespace {

const LionConfig& checked(const LionConfig& config) {
  for (const float beta : {config.beta1, config.beta2})
    if (!(beta >= 0 && beta < 1))
      throw UsageError(fmt::format("Lion: a beta of {}", beta), "pass 0 or more, and less than 1");
  return config;
}

}  // namespace

Lion::Lion(Executor& executor, const LionConfig& config)
    : Optimizer(executor,
                {.name = "Lion",
                 .state = {"m"},
                 .settings = {{"Lion's beta1", fmt::to_string(checked(config).beta1)},
                              {"Lion's beta2", fmt::to_string(config.beta2)}}},
                shared_options(config)),
      config_(config) {}

Optimizer::UnitUpdate Lion::unit_update() const {
  return [&kernels = kernels(), config = config_](ExecContext& exec, const std::vector<Slice>& slices) {
    kernels.update(exec, Slice::ranges_of(slices), LionOptions{config.beta1, config.beta2});
  };
}

}  // namespace zs
