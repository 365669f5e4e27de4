#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

namespace zs::futex {

// Raw futexes, because mutexes, condition variables and std::atomic::wait share locks between all threads, and a lock
// that the host and two streams share looks like order between the streams: it would hide a missing event from TSan.

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

/// Sleeps while `word` holds `expected`, at most `ns`. May return early; the caller looks again.
inline void wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t ns) {
  const timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
  // Woken, timed out, interrupted and "the word has changed" all mean the same to the caller.
  if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, &limit, nullptr, 0) != 0) errno = 0;
}

inline void wake_all(std::atomic<std::uint32_t>& word) {
  if (syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0) < 0) errno = 0;
}

/// Way to wait for another thread when cores may be fewer than threads: poll a few times, yield a few times, then
/// sleep. Sleeps are bounded because the relaxed flags around them can, on weakly ordered processors, lose a wake-up.
class Backoff {
 public:
  static constexpr int kPolls = 32, kYields = 4;
  static constexpr std::int64_t kFirstSleepNs = 2'000'000, kLongestSleepNs = 64'000'000;

  /// True when the caller should sleep for `sleep_ns()`; otherwise it has paused a little already.
  bool should_sleep() {
    if (round_ >= kPolls + kYields) return true;
    if (round_++ < kPolls) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else if (syscall(SYS_sched_yield) != 0) {
      errno = 0;
    }
    return false;
  }
  std::int64_t sleep_ns() {
    const std::int64_t ns = sleep_ns_;
    sleep_ns_ = std::min(2 * sleep_ns_, kLongestSleepNs);
    return ns;
  }

 private:
  int round_ = 0;
  std::int64_t sleep_ns_ = kFirstSleepNs;
};

}  // namespace zs::futex
