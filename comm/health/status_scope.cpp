#include "comm/health/status_scope.h"

#include <memory>

#include "comm/health/watchdog.h"

namespace zs {

StatusScope::StatusScope(Watchdog* watchdog, std::string_view what, Host host) {
  if (watchdog == nullptr) return;
  const int waits = host == Host::waits_for_ranks ? 1 : 0;
  end_ = [watchdog, before = watchdog->page_.host.get(), waits] {
    watchdog->page_.host_waits -= waits;
    watchdog->page_.host.set(before);
    ++watchdog->phases_;
  };
  watchdog->page_.host.set(what);
  watchdog->page_.host_waits += waits;
  ++watchdog->phases_;
}

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
