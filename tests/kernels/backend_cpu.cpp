#include <memory>

#include "tests/kernels/backend.h"

#include <string_view>

namespace zs::test {

const KernelTable& kernels_under_test() { return cpu_kernels(); }
DeviceKind device_under_test() { return DeviceKind::cpu; }
bool rounds_probabilities(DType dtype, std::int64_t) {
  return dtype == DType::bf16 && std::string_view(cpu_isa()) == "amx";
}
ExecContext make_context(int threads) { return {threads, nullptr}; }
Allocator& memory_under_test() {
  static const std::unique_ptr<Allocator> memory = make_cpu_allocator();
  return *memory;
}

}  // namespace zs::test
