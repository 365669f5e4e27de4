#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/device/allocator.h"

namespace zs {

struct NcclLibrary;

/// GPU memory that NCCL allocates (ncclMemAlloc), so that it can be registered with its communicators: made for what
/// connects GPUs, rounded up as these want it. For a device's slab (DeviceOptions::memory), and for
/// NcclOptions::memory. Of the GPU whose context is current. Outlives the device; what is allocated outlives the
/// communicators. Allocations are for one thread; `blocks` for any, when they are done.
class NcclMemory final : public Allocator {
 public:
  using Block = std::pair<void*, std::int64_t>;  ///< address, bytes as asked for

  /// `library` has the functions, see `made_by`.
  explicit NcclMemory(std::shared_ptr<const NcclLibrary> library) : library_(std::move(library)) {}
  /// Null where the library cannot register memory: before 2.19.
  static std::shared_ptr<NcclMemory> made_by(const std::shared_ptr<const NcclLibrary>& library);

  DeviceKind device() const override { return DeviceKind::cuda; }
  /// Error(out_of_memory) where NCCL has none to give, for whatever reason.
  void* allocate(std::int64_t bytes) override;
  void deallocate(void* address, std::int64_t bytes) noexcept override;

  const std::vector<Block>& blocks() const { return blocks_; }
  std::int64_t bytes() const;

 private:
  const std::shared_ptr<const NcclLibrary> library_;
  std::vector<Block> blocks_;
};

}  // namespace zs
