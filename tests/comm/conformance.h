#pragma once

#include <span>

#include "comm/world.h"
#include "runtime/device/device.h"

namespace zs::test {

/// One behaviour that every transport has at every number of ranks. `run` is called on every rank at once, each with
/// its own device; it throws where the behaviour is missing (Catch's macros are for one thread only).
struct ConformanceCase {
  const char* name;
  void (*run)(World& world, Device& device);
  unsigned needs = 0;  ///< of the following
};
/// What transports between GPUs have not: buffers of the host, on devices that the case makes.
inline constexpr unsigned kHostMemory = 1;
/// Ranks may issue operations of different communicators in different orders.
inline constexpr unsigned kAnyOrder = 2;
/// Sums have an order that is written down.
inline constexpr unsigned kWrittenOrder = 4;
/// A NaN makes a maximum NaN.
inline constexpr unsigned kNansWin = 8;
/// Sums are added to f64 and whole numbers too, and there are some of u8 and u16.
inline constexpr unsigned kAnyAccumulator = 16;

/// Every operation, on good arguments.
std::span<const ConformanceCase> operation_cases();
/// Each rank writes its slice of a window and reads the others', over and over; then all let go of it, the first rank
/// first.
void a_window_is_everybodys(World& world, Device& device);
/// Ranks that disagree. Leave failed communicators behind, but the world usable. Need two ranks.
std::span<const ConformanceCase> disagreement_cases();

/// Every rank's part in a wait for a rank that never comes: the last one. The world's timeout should be a second or
/// two.
void expect_lost_peer_is_named(World& world, Device& device, double timeout_s);

}  // namespace zs::test
