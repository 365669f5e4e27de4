#pragma once

#include <cstddef>
#include <span>

namespace zs::cuda {

/// The kernels, as nvcc left them (a fatbin). Empty in a build without, where no device is made over the real driver.
std::span<const std::byte> kernel_image();

}  // namespace zs::cuda
