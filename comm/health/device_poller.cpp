#include "comm/health/device_poller.h"

#include <exception>

namespace zs {

void WatchEnquiry::observe(const Device* device) {
  const std::lock_guard lock(asked_);
  device_ = device;
  if (device == nullptr) page_.streams.set("");
  if (device != nullptr && device->kind() != DeviceKind::cpu) may_block_ = true;
}

void WatchEnquiry::add(const Errand& errand) {
  const std::lock_guard lock(asked_);
  errands_.push_back(&errand);
  may_block_ = true;
}

void WatchEnquiry::remove(const Errand& errand) {
  const std::lock_guard lock(asked_);
  std::erase(errands_, &errand);
}

void WatchEnquiry::look() {
  if (!may_block_) return ask(Asker::watchdog);
  if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { ask_again_and_again(stop); });
}

void WatchEnquiry::ask(Asker asker) {
  const std::lock_guard lock(asked_);
  if (may_block_ && asker == Asker::watchdog) return;  // since a moment
  if (device_ != nullptr) {
    completed_ = device_->completed();
    page_.streams.set(device_->activity());
  }
  for (const Errand* errand : errands_) (*errand)();
}

void WatchEnquiry::ask_again_and_again(const std::stop_token& stop) {
  std::mutex own;
  std::unique_lock lock(own);
  while (!stop.stop_requested()) {
    try {
      ask(Asker::own_thread);
    } catch (const std::exception&) {
      // No memory: the next answer is as good.
    }
    wakes_.wait_for(lock, stop, kLookEvery, [] { return false; });
  }
}

}  // namespace zs
