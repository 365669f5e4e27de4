#include "comm/health/device_poller.h"

#include <exception>

namespace zs {

void DevicePoller::observe(const Device* device) {
  const std::lock_guard lock(polling_);
  device_ = device;
  if (device == nullptr) page_.streams.set("");
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
    page_.streams.set(device_->activity());
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
