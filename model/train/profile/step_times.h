#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/device/profile.h"

namespace zs {

/// Interval of std::chrono::steady_clock.
struct Interval {
  std::int64_t begin_ns = 0, end_ns = 0;
  double ms() const { return static_cast<double>(end_ns - begin_ns) * 1e-6; }
};

/// Times of one rank in a step: the host from its begin until it had the result, and each stream in its order.
struct StepTimes {
  std::int64_t step = 0;
  Interval span = {};
  std::array<std::vector<OpTime>, kStreamRoles> times = {};
  std::array<std::vector<RecordTime>, kStreamRoles> records = {};
  std::vector<Interval> reads = {};  ///< the host read samples

  const std::vector<OpTime>& of(StreamRole role) const { return times[static_cast<std::size_t>(role)]; }
};

}  // namespace zs
