#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/health/flight_recorder.h"
#include "runtime/device/device.h"

namespace zs {

/// How often a watchdog looks.
inline constexpr auto kLookEvery = std::chrono::milliseconds(100);

/// What a watchdog asks of others: the device how far its work is, errands what has failed. A GPU's driver and NCCL may never answer, so
/// they are asked by a thread of their own, and the watchdog reads what was answered last. The CPU device answers at once: then there is
/// no such thread. Any thread may call.
class WatchEnquiry {
 public:
  using Errand = std::function<void()>;

  /// What the device's streams do is written to the page.
  explicit WatchEnquiry(FlightPage& page) : page_(page) {}

  /// Null: no device any more. Waits for an answer that is under way.
  void observe(const Device* device);
  void add(const Errand& errand);
  /// Waits for it, if it is under way.
  void remove(const Errand& errand);

  /// The watchdog's thread: asks what answers at once, and begins to have the rest asked.
  void look();
  /// Operations of the device that were done at the last answer.
  std::uint64_t completed() const { return completed_; }

 private:
  enum class Asker : bool { watchdog, own_thread };
  void ask(Asker asker);
  void ask_again_and_again(const std::stop_token& stop);

  FlightPage& page_;
  std::mutex asked_;  // held while somebody is asked
  std::condition_variable_any wakes_;
  const Device* device_ = nullptr;
  std::vector<const Errand*> errands_;
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<bool> may_block_{false};
  std::jthread thread_;  // the watchdog's thread starts it
};

}  // namespace zs
