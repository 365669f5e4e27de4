#pragma once

#include "comm/world.h"
#include "runtime/device/device.h"

namespace zs::test {

/// Conformance cases about groups of ranks: ConformanceCase::run.
void split_orders_ranks_of_a_color_by_key(World& world, Device& device);
void communicators_can_be_made_and_dropped_for_ever(World& world, Device& device);
/// One that ends while its operation waits for a rank that comes late has done it first.
void a_communicator_that_ends_does_what_it_was_given(World& world, Device& device);
void mesh_axes_connect_the_right_ranks(World& world, Device& device);
/// Ranks enqueue on their streams in different orders; only the order on each communicator is the same.
void communicators_on_different_streams_do_not_mix(World& world, Device& device);
/// Every operation in turn within rows, within columns and over all, each group on a stream of its own.
void groups_in_flight_at_once_do_not_mix(World& world, Device& device);
/// The same in another order on every rank.
void groups_in_flight_in_any_order_do_not_mix(World& world, Device& device);

}  // namespace zs::test
