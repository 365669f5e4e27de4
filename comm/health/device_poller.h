#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/health/flight_recorder.h"
#include "runtime/device/device.h"

namespace zs {

/// Period of a watchdog's polls.
inline constexpr auto kPollEvery = std::chrono::milliseconds(100);

/// True if no stream of such an activity (Device::activity) computes: each waits for another, or is in an operation.
bool waits_only(std::string_view activity);

/// Polls for a watchdog what may block: how far the device's work is, and probes of what has failed. A GPU's driver and
/// NCCL may never answer, so a thread of its own polls them, and the watchdog reads the last answer. The CPU device
/// answers at once: then there is no such thread. Any thread may call.
class DevicePoller {
 public:
  using Probe = std::function<void()>;

  /// The page is where what the device's streams do is written.
  explicit DevicePoller(StatusPage& page) : page_(page) {}

  /// Null: no device any more. Waits for an answer that is under way.
  void observe(const Device* device);
  void add(const Probe& probe);
  /// Waits for it, if it is under way.
  void remove(const Probe& probe);

  /// The watchdog's thread: polls what answers at once, and starts the thread that polls the rest.
  void poll();
  /// Operations of the device that were done at the last answer.
  std::uint64_t completed() const { return completed_; }

 private:
  enum class Poller : bool { watchdog, own_thread };
  void poll_as(Poller poller);
  void poll_until_stopped(const std::stop_token& stop);

  StatusPage& page_;
  std::mutex polling_;  // held during a poll
  std::condition_variable_any wakes_;
  const Device* device_ = nullptr;
  std::vector<const Probe*> probes_;
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<bool> may_block_{false};
  std::jthread thread_;  // the watchdog's thread starts it
};

}  // namespace zs
