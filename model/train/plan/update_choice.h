#pragma once

#include "model/train/config/config.h"
#include "runtime/device/device.h"

namespace zs {

/// True if the host could make the optimizer's updates: it has in its memory all that they read and write.
bool may_update_on_host(const Config& config);

/// Costs of an update for each parameter, in ns: over the link to the device, or by the host's processors where masters
/// and moments lie.
struct UpdateCosts {
  double device_ns = 0, host_ns = 0;
  bool prefers_host() const { return host_ns < device_ns; }
};

/// Measures both by how fast this rank's processors update 4 million parameters now, and by offload.cpu_link_gbs or
/// what `device`, which is made for this alone, copies from and to the host. Some tenths of a second.
UpdateCosts measure_update(const Config& config, Device& device);

}  // namespace zs
