#include "comm/health/device_poller.h"

#include <algorithm>
#include <array>
#include <exception>
#include <string>

namespace zs {

bool waits_only(std::string_view activity) {
  constexpr std::array kWaits = {
      "waits for", "all_gather:", "reduce_scatter:", "all_reduce:", "broadcast:", "all_to_all", "barrier:", "publish:"};
  while (!activity.empty()) {
    const std::size_t end = std::min(activity.find("; "), activity.size());
    std::string_view what = activity.substr(0, end);
    what.remove_prefix(std::min(what.find(": ") + 2, what.size()));
    if (std::none_of(kWaits.begin(), kWaits.end(), [&](const char* wait) { return what.starts_with(wait); }))
      return false;
    activity.remove_prefix(std::min(end + 2, activity.size()));
  }
  return true;
}

void DevicePoller::observe(const Device* device) {
  const std::lock_guard lock(polling_);
  device_ = device;
  if (device == nullptr) page_.streams.set("");
  page_.streams_wait = page_.host_syncs = false;
  if (device != nullptr && device->kind() != DeviceKind::cpu) may_block_ = true;
}

void DevicePoller::add(const Probe& probe) {
  const std::lock_guard lock(polling_);
  probes_.push_back(&probe);
  may_block_ = true;
}

void DevicePoller::remove(const Probe& probe) {
  const std::lock_guard lock(polling_);
  std::erase(probes_, &probe);
}

void DevicePoller::poll() {
  if (!may_block_) return poll_as(Poller::watchdog);
  if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { poll_until_stopped(stop); });
}

void DevicePoller::poll_as(Poller poller) {
  const std::lock_guard lock(polling_);
  if (may_block_ && poller == Poller::watchdog) return;  // since a moment
  if (device_ != nullptr) {
    completed_ = device_->completed();
    const std::string activity = device_->activity();
    page_.streams.set(activity);
    page_.streams_wait = waits_only(activity);
    page_.host_syncs = device_->is_awaited();
  }
  for (const Probe* probe : probes_) (*probe)();
}

void DevicePoller::poll_until_stopped(const std::stop_token& stop) {
  std::mutex own;
  std::unique_lock lock(own);
  while (!stop.stop_requested()) {
    try {
      poll_as(Poller::own_thread);
    } catch (const std::exception&) {
      // No memory: the next answer is as good.
    }
    wakes_.wait_for(lock, stop, kPollEvery, [] { return false; });
  }
}

}  // namespace zs
