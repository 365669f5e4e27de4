#pragma once

#include "kernels/kernels.h"

/// Whose kernels a test program is about: its build links one of backend_*.cpp.
namespace zs::test {

const KernelTable& kernels_under_test();
DeviceKind device_under_test();
/// To run them in: they are done on return. `threads`: of the CPU's team; on the emulated GPU an odd number runs blocks and threads in
/// their order, an even one backwards.
ExecContext make_context(int threads = 1);

}  // namespace zs::test
