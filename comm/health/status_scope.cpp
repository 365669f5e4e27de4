#include "comm/health/status_scope.h"

#include <memory>

#include "comm/health/watchdog.h"

namespace zs {

StatusScope::StatusScope(FlightRecorder* recorder, std::string_view what, Host host) {
  if (recorder == nullptr) return;
  const int waits = host == Host::waits_for_ranks ? 1 : 0;
  end_ = [recorder, before = recorder->page_.host.get(), waits] {
    if (waits != 0) recorder->end_wait(monotonic_ns());
    recorder->page_.host_waits -= waits;
    recorder->page_.host.set(before);
    recorder->note_move();
  };
  recorder->page_.host.set(what);
  recorder->page_.host_waits += waits;
  if (waits != 0) recorder->begin_wait(monotonic_ns());
  recorder->note_move();
}

StatusScope::StatusScope(Watchdog* watchdog, std::string_view what, Host host)
    : StatusScope(watchdog == nullptr ? nullptr : &watchdog->recorder(), what, host) {}

StatusScope::StatusScope(Watchdog* watchdog, const Device& device) {
  if (watchdog == nullptr) return;
  watchdog->device_poller_.observe(&device);
  end_ = [watchdog] { watchdog->device_poller_.observe(nullptr); };
}

StatusScope::StatusScope(Watchdog* watchdog, std::function<void()> probe) {
  if (watchdog == nullptr) return;
  auto kept = std::make_shared<DevicePoller::Probe>(std::move(probe));
  end_ = [watchdog, kept] { watchdog->device_poller_.remove(*kept); };
  watchdog->device_poller_.add(*kept);
}

StatusScope::~StatusScope() {
  if (end_) end_();
}

}  // namespace zs
