#include <atomic>

#include "runtime/device/allocator.h"

namespace zs {
namespace {

class MetaAllocator final : public Allocator {
 public:
  explicit MetaAllocator(std::uint64_t first) : next_(first) {}
  DeviceKind device() const override { return DeviceKind::meta; }

  void* allocate(std::int64_t bytes) override {
    ZS_CHECK(bytes >= 0, "allocation of {} bytes", bytes);
    const auto size = static_cast<std::uint64_t>(std::max(Pool::rounded(bytes), kBlockAlignment));
    return reinterpret_cast<void*>(next_.fetch_add(size, std::memory_order_relaxed));
  }
  void deallocate(void*, std::int64_t) noexcept override {}

 private:
  std::atomic<std::uint64_t> next_;
};

}  // namespace

std::unique_ptr<Allocator> make_meta_allocator(int range) {
  ZS_CHECK(range >= 0 && range < 4096, "meta address range {}, expected 0 to 4095", range);
  return std::make_unique<MetaAllocator>(static_cast<std::uint64_t>(range + 1) * 0x1000'0000'0000ull);
}

}  // namespace zs
