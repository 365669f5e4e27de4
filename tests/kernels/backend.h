#pragma once

#include <vector>

#include "kernels/kernels.h"
#include "runtime/device/allocator.h"

/// Whose kernels a test program is about: its build links one of backend_*.cpp.
namespace zs::test {

const KernelTable& kernels_under_test();
DeviceKind device_under_test();
/// Whether attention rounds probabilities to bf16 before it multiplies them.
bool rounds_probabilities(DType dtype, std::int64_t head_dim);
/// To run them in: they are done on return. `threads`: of the CPU's team; on the emulated GPU an odd number runs blocks
/// and threads in their order, an even one backwards.
ExecContext make_context(int threads = 1);
/// What both the kernels and the tests reach by the same address.
Allocator& memory_under_test();

template <class T>
struct TestAllocator {
  using value_type = T;
  TestAllocator() = default;
  template <class U>
  explicit TestAllocator(const TestAllocator<U>&) {}

  T* allocate(std::size_t n) { return static_cast<T*>(memory_under_test().allocate(bytes(n))); }
  void deallocate(T* address, std::size_t n) noexcept { memory_under_test().deallocate(address, bytes(n)); }
  bool operator==(const TestAllocator&) const = default;

 private:
  static std::int64_t bytes(std::size_t n) { return static_cast<std::int64_t>(n * sizeof(T)); }
};
template <class T>
using TestVector = std::vector<T, TestAllocator<T>>;

}  // namespace zs::test
