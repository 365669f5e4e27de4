#pragma once

#include <string>

#include "runtime/tensor/context.h"

namespace zs {

/// Copies between the host's memory and the device's, on the offload stream. A CPU device is held to `cpu_link_gbs`, in
/// 10^9 bytes a second; 0: what it can. On return: enqueued, not done.
void enqueue_link_copy(Context& context, double cpu_link_gbs, std::string name, const Buffer& out, const Buffer& in);

}  // namespace zs
