#pragma once

#include "comm/host/host_map.h"
#include "comm/world.h"
#include "runtime/device/device.h"

namespace zs::test {

/// The hosts inside which sums are made first: for most transports each rank is one.
HostMap summed_first(const World& world);

/// Conformance cases about where ranks are, and about what travels: ConformanceCase::run.
void sums_are_folded_in_the_transports_order(World& world, Device& device);
void messages_carry_what_they_must(World& world, Device& device);
void parts_of_any_size_arrive(World& world, Device& device);
/// Leaves a failed communicator; needs two ranks.
void parts_that_differ_are_caught(World& world, Device& device);
void packed_sums_are_folded_in_the_transports_order(World& world, Device& device);
/// Buffers of more than 2^31 bytes, one a rank; for two or three ranks.
void huge_buffers_arrive(World& world, Device& device);

}  // namespace zs::test
