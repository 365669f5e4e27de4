#pragma once

#include "comm/world.h"
#include "runtime/base/dtype.h"
#include "runtime/device/device.h"

namespace zs::bench {

/// The ceiling that products are compared with: the best rate, in GFLOP/s, at which all threads of all ranks together have multiplied
/// matrices of 2048 x 2048 in this process. Each of `rounds` rounds runs the product through the kernel table, with B plain and with B
/// transposed, and through oneDNN with its own threading; before each the ranks line up, and the rates of the ranks are added. The best
/// sum counts. Has a device and memory of its own, given back on return. Collective; blocks the host.
double product_ceiling_gflops(World& world, const DeviceOptions& options, DType dtype, int rounds);

}  // namespace zs::bench
