#include <memory>

#include "tests/kernels/backend.h"

namespace zs::test {

const KernelTable& kernels_under_test() { return cpu_kernels(); }
DeviceKind device_under_test() { return DeviceKind::cpu; }
ExecContext make_context(int threads) { return {threads, nullptr}; }
Allocator& memory_under_test() {
  static const std::unique_ptr<Allocator> memory = make_cpu_allocator();
  return *memory;
}

}  // namespace zs::test
