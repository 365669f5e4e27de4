#pragma once

#include <algorithm>
#include <chrono>

namespace zs {

/// Deadline for something that one polls for again and again. Time in which it could not poll, since its process was
/// stopped, does not count: who it waits for was stopped as well, or could not reach it.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(double limit_s, Clock::time_point now = Clock::now())
      : end_(now +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(limit_s, kLongest_s)))),
        last_look_(now) {}

  bool has_passed(Clock::time_point now = Clock::now()) {
    if (now - last_look_ >= kStoppedFrom) end_ += now - last_look_;
    last_look_ = now;
    return now >= end_;
  }

 private:
  /// Longer than a thread waits for a processor; the watchdog tells of as much.
  static constexpr std::chrono::seconds kStoppedFrom{2};
  static constexpr double kLongest_s = 1e9;  // longest time in seconds that can be added to a clock of nanoseconds

  Clock::time_point end_, last_look_;
};

}  // namespace zs
