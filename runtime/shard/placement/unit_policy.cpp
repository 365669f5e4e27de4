#include "runtime/shard/placement/unit_policy.h"

#include <fmt/format.h>

#include "runtime/base/check.h"

namespace zs {

void check_frozen_format(const UnitPolicy& policy, bool checks_writes, std::string_view unit) {
  if (policy.frozen_format == nullptr) return;
  const auto refuse = [&](std::string_view what, const char* what_to_do) {
    throw Error(ExitCode::config,
                fmt::format("unit {}: weights held as {} do not go with {}", unit, policy.frozen_format->name, what),
                {}, what_to_do);
  };
  if (!policy.is_frozen) refuse("training", "freeze the unit, or leave frozen_format out");
  if (policy.reshard_after_forward)
    refuse("reshard_after_forward: they are decoded for each use", "leave one of them out");
  if (!policy.partition.axis.empty())
    refuse("a partition, which may cut their blocks", "leave frozen_format or partition out");
  if (checks_writes) refuse("checks_writes, which compares them", "leave one of them out");
}

SchemeOptions scheme_of_format(SchemeOptions scheme) {
  if (scheme.mesh) return scheme;
  if (scheme.strategy == Strategy::zero1 || scheme.strategy == Strategy::zero2) scheme.strategy = Strategy::ddp;
  if (scheme.strategy == Strategy::shard_grad_op) scheme.strategy = Strategy::zero3;
  if (scheme.reshard_after_forward.group() != 0) scheme.reshard_after_forward = true;
  return scheme;
}

}  // namespace zs
