#include "comm/nccl/nccl_memory.h"

#include <algorithm>
#include <cstdio>

#include "comm/nccl/nccl_library.h"

namespace zs {

std::shared_ptr<NcclMemory> NcclMemory::made_by(const std::shared_ptr<const NcclLibrary>& library) {
  const bool is_old = library->memory_allocate == nullptr || library->memory_free == nullptr ||
                      library->enroll == nullptr || library->discharge == nullptr;
  return is_old ? nullptr : std::make_shared<NcclMemory>(library);
}

void* NcclMemory::allocate(std::int64_t bytes) {
  blocks_.reserve(blocks_.size() + 1);
  void* address = nullptr;
  const int status = library_->memory_allocate(&address, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  if (status != nccl::kSuccess || address == nullptr)
    throw Error(ExitCode::out_of_memory, fmt::format("ncclMemAlloc: NCCL error {} for {} bytes", status, bytes),
                "GPU memory to register", "set cuda.register = \"off\"");
  blocks_.emplace_back(address, bytes);
  return address;
}

void NcclMemory::deallocate(void* address, std::int64_t) noexcept {
  std::erase_if(blocks_, [&](const Block& block) { return block.first == address; });
  if (const int status = library_->memory_free(address); status != nccl::kSuccess)
    std::fprintf(stderr, "zshard: ncclMemFree: NCCL error %d\n", status);
}

std::int64_t NcclMemory::bytes() const {
  std::int64_t sum = 0;
  for (const Block& block : blocks_) sum += block.second;
  return sum;
}

}  // namespace zs
