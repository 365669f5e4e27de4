#pragma once

#include <functional>

#include "runtime/device/stream.h"

namespace zs {

/// Within a stream's work: `work` runs on the host in the order of that stream. On a CPU device that is now; a GPU's
/// stream has a thread of its driver's call it when the GPU has come there. What it throws the stream's next
/// synchronize throws, and what is called on the stream after it is left out. It may not call the driver.
void call_on_host(ExecContext& exec, std::function<void()> work);

}  // namespace zs
