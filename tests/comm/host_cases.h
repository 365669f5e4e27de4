#pragma once

#include "comm/world.h"
#include "runtime/device/device.h"

namespace zs::test {

/// Conformance cases about where ranks are: ConformanceCase::run.
void sums_are_folded_in_the_transports_order(World& world, Device& device);
void messages_carry_what_they_must(World& world, Device& device);

}  // namespace zs::test
