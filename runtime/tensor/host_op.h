#pragma once

#include <functional>
#include <vector>

#include "runtime/tensor/context.h"

namespace zs {

/// Work that fills the buffers it is declared to write from those it is declared to read, all of them on the host, in
/// the order of their declaration.
using HostFill = std::function<void(const std::vector<Buffer>& reads, const std::vector<Buffer>& writes)>;

/// Enqueues `fill` on the compute stream, for an op that has no kernel. With a GPU the host waits for that stream,
/// fills memory of its own, and uploads it: right, but slow, and nothing for a captured step.
void fill_on_host(const Context& context, OpInfo info, HostFill fill);

}  // namespace zs
