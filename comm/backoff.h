#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/deadline.h"

namespace zs {

/// Backoff of every wait for a peer: a few polls, yields for 100 us (what a peer on another core needs to copy half a
/// MiB), then sleeps that grow to 100 us (there may be four ranks to a core) or to what it is told, with a deadline on
/// the monotonic clock. A value on the waiting thread's stack.
class Backoff {
 public:
  static constexpr std::chrono::microseconds kLongestSleep{100};
  /// Pauses of a wait between two checks that those which it waits for are alive.
  static constexpr int kPausesBetweenChecks = 200;

  /// Makes a backoff; with a longer `longest_sleep` than the usual one it does without yields: what it waits for is
  /// slow.
  explicit Backoff(double timeout_s, std::chrono::microseconds longest_sleep = kLongestSleep)
      : timeout_s_(timeout_s), longest_sleep_(longest_sleep) {
    restart();
  }

  /// Something moved: the deadline and the pauses start again.
  void restart() {
    round_ = 0;
    sleep_ = kFirstSleep;
    const auto now = Clock::now();
    yields_end_ = longest_sleep_ > kLongestSleep ? now : now + kYielding;
    deadline_ = Deadline(timeout_s_, now);
  }

  /// Pauses, longer each time. False, without a pause, when the deadline has passed.
  bool pause() {
    if (round_ < kPolls) {
      ++round_;
      return true;
    }
    const auto now = Clock::now();
    if (deadline_.has_passed(now)) return false;
    if (now < yields_end_) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(2 * sleep_, longest_sleep_);
    }
    return true;
  }

 private:
  using Clock = Deadline::Clock;
  static constexpr int kPolls = 16;
  static constexpr std::chrono::microseconds kYielding{100}, kFirstSleep{5};

  double timeout_s_;
  std::chrono::microseconds longest_sleep_;
  Clock::time_point yields_end_;
  Deadline deadline_{0};
  std::chrono::microseconds sleep_{kFirstSleep};
  int round_ = 0;
};

/// Longest sleep of a wait for data that moves as quickly as these `bytes` did: while it sleeps, a quarter of what
/// waits in a socket goes (docs/decisions/0043-slow-links-are-polled-less-often.md). Never less than the usual one, and
/// 1 ms at most.
inline std::chrono::microseconds longest_sleep(std::int64_t bytes, std::chrono::nanoseconds took) {
  constexpr double kMovesAsleep = 64 * 1024;
  constexpr double kLeast_us = static_cast<double>(Backoff::kLongestSleep.count()), kMost_us = 1000;
  const double us =
      kMovesAsleep / static_cast<double>(std::max<std::int64_t>(bytes, 1)) * static_cast<double>(took.count()) * 1e-3;
  return std::chrono::microseconds(static_cast<std::int64_t>(std::clamp(us, kLeast_us, kMost_us)));
}

/// "0, 2, 5". Not fmt::join: GCC 12 at -O3 warns inside fmt 9 about it, falsely.
inline std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

/// Error(peer_lost) of a wait whose deadline has passed: "all_gather(blocks.3) waited 300 s for rank 1 (rank 0): ...".
inline Error waited_in_vain(std::string_view what, int rank, double timeout_s, const std::string& missing) {
  return Error(ExitCode::peer_lost, fmt::format("{} waited {:g} s for rank {}", what, timeout_s, missing),
               fmt::format("rank {}", rank),
               "see whether that rank still runs; WorldOptions::timeout_s limits the wait");
}

inline constexpr const char* kAfterADeath = "look for what ended it: its host's memory, its host's log";

}  // namespace zs
