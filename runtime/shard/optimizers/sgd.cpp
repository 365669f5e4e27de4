#include "runtime/shard/optimizers/sgd.h"

#include <fmt/format.h>

#include "runtime/base/usage_error.h"

namespace zs {
namespace {

const SgdConfig& checked(const SgdConfig& config) {
  if (!(config.momentum >= 0 && config.momentum < 1)) {
    throw UsageError(fmt::format("Sgd: a momentum of {}", config.momentum), "pass 0 or more, and less than 1");
  }
  if (config.nesterov && config.momentum == 0)
    throw UsageError("Sgd: nesterov without a momentum", "pass a momentum above 0");
  return config;
}

}  // namespace

Sgd::Sgd(Executor& executor, const SgdConfig& config)
    : Optimizer(
          executor,
          {.name = "Sgd",
           .state = checked(config).momentum > 0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{},
           .settings = {{"Sgd's momentum", fmt::to_string(config.momentum)},
                        {"Sgd's nesterov", fmt::to_string(config.nesterov)}}},
          shared_options(config)),
      config_(config) {}

Optimizer::UnitUpdate Sgd::unit_update() const {
  return [&kernels = kernels(), config = config_](ExecContext& exec, const std::vector<Slice>& slices) {
    kernels.update(exec, Slice::ranges_of(slices), SgdOptions{config.momentum, config.nesterov});
  };
}

}  // namespace zs
