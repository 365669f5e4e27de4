#pragma once

#include <memory>

#include "runtime/base/check.h"
#include "runtime/device/allocator.h"

namespace zs::test {

/// An allocator that has a number of allocations to give.
class LimitedAllocator final : public Allocator {
 public:
  DeviceKind device() const override { return DeviceKind::cpu; }
  void* allocate(std::int64_t bytes) override {
    if (left_ == 0) throw Error(ExitCode::out_of_memory, "no memory is left");
    if (left_ > 0) --left_;
    return memory_->allocate(bytes);
  }
  void deallocate(void* address, std::int64_t bytes) noexcept override { memory_->deallocate(address, bytes); }
  void limit(int allocations) { left_ = allocations; }

 private:
  std::unique_ptr<Allocator> memory_ = make_cpu_allocator();
  int left_ = -1;
};

}  // namespace zs::test
