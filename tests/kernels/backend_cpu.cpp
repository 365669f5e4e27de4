#include "tests/kernels/backend.h"

namespace zs::test {

const KernelTable& kernels_under_test() { return cpu_kernels(); }
DeviceKind device_under_test() { return DeviceKind::cpu; }
ExecContext make_context(int threads) { return {threads, nullptr}; }

}  // namespace zs::test
