#pragma once

#include <map>
#include <string>

#include "tests/gpu/emulation/emulated_driver.h"

namespace zs::test {

/// Every kernel of kernels/cuda/, from its own source, by name.
std::map<std::string, EmulatedKernel> emulated_kernels();

}  // namespace zs::test
