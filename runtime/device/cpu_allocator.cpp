#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>

#include "runtime/device/allocator.h"

namespace zs {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20, kHugeFrom = std::int64_t{4} << 20;
/// More than any x86-64 or arm64 process can address; sanitizers' allocators abort on such sizes instead of refusing.
constexpr std::int64_t kAddressSpace = std::int64_t{1} << 47;

class CpuAllocator final : public Allocator {
 public:
  DeviceKind device() const override { return DeviceKind::cpu; }

  void* allocate(std::int64_t bytes) override {
    ZS_CHECK(bytes >= 0, "allocation of {} bytes", bytes);
    const std::int64_t alignment = bytes >= kHugeFrom          ? kHugePage
                                   : bytes >= kPageAlignedFrom ? kPageAlignment
                                                               : kBlockAlignment;
    const std::int64_t size = std::max(Pool::rounded(bytes), kBlockAlignment);
    void* address = nullptr;
    if (bytes >= kAddressSpace || posix_memalign(&address, alignment, size) != 0)
      throw Error(ExitCode::out_of_memory, fmt::format("cannot allocate {} bytes of CPU memory", bytes), {},
                  "reduce the micro-batch or the model, use more ranks, or raise the memory limit (ulimit -v, cgroup)");
    // Only a request: kernels without transparent huge pages refuse it, and nothing depends on it.
    if (bytes >= kHugeFrom && madvise(address, size / kHugePage * kHugePage, MADV_HUGEPAGE) != 0) errno = 0;
    return address;
  }

  void deallocate(void* address, std::int64_t) noexcept override { std::free(address); }
};

}  // namespace

std::unique_ptr<Allocator> make_cpu_allocator() { return std::make_unique<CpuAllocator>(); }

}  // namespace zs
