#pragma once

#include <functional>
#include <string_view>

namespace zs {

class Device;
class FlightRecorder;
class Watchdog;

/// Scope that sets what others know of a rank while it lives; then that is as before. Where the recorder or watchdog is
/// null, nothing.
class StatusScope {
 public:
  enum class Host : bool { works, waits_for_ranks };
  /// Sets what the host thread does, for the line: "reading data". Host thread.
  StatusScope(FlightRecorder* recorder, std::string_view what, Host host);
  StatusScope(Watchdog* watchdog, std::string_view what, Host host);
  /// The device's work counts as movement. Destroyed before the device. Host thread.
  StatusScope(Watchdog* watchdog, const Device& device);
  /// `probe` is called at each poll of the watchdog, by a thread that may wait (DevicePoller). It never throws.
  StatusScope(Watchdog* watchdog, std::function<void()> probe);
  /// Waits for a probe, or an answer of the device, that is under way.
  ~StatusScope();
  StatusScope(const StatusScope&) = delete;
  StatusScope& operator=(const StatusScope&) = delete;

 private:
  std::function<void()> end_;  // never throws
};

}  // namespace zs
