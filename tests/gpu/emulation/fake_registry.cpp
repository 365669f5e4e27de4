#include "tests/gpu/emulation/fake_registry.h"

#include <algorithm>

#include "comm/nccl/nccl_library.h"

namespace zs::test {

int FakeRegistry::mistake(const std::string& what) {
  mistakes_.push_back(what);
  return nccl::kInvalidUsage;
}

int FakeRegistry::allocate(void** address, std::size_t bytes) {
  constexpr std::size_t kGranule = std::size_t{1} << 21;
  constexpr int kUnhandledCudaError = 1;
  const std::size_t rounded = (bytes + kGranule - 1) / kGranule * kGranule;
  CudaDriver::Address begin = 0;
  if (driver_.table()->memory_allocate(&begin, rounded) != cuda_status::kSuccess) return kUnhandledCudaError;
  *address = reinterpret_cast<void*>(begin);
  memory_[static_cast<const std::byte*>(*address)] = rounded;
  return nccl::kSuccess;
}

int FakeRegistry::give_back(void* address) {
  const auto block = memory_.find(static_cast<const std::byte*>(address));
  if (block == memory_.end()) return mistake("memory that is not NCCL's is given back to it");
  for (const auto& [handle, one] : registered_) {
    if (one.begin >= block->first && one.begin < block->first + block->second)
      return mistake("registered memory is given back");
  }
  memory_.erase(block);
  return driver_.table()->memory_free(reinterpret_cast<CudaDriver::Address>(address));
}

int FakeRegistry::enroll(const ncclComm* comm, void* address, std::size_t bytes, void** handle) {
  const auto* const begin = static_cast<const std::byte*>(address);
  const auto block = std::find_if(memory_.begin(), memory_.end(), [&](const auto& one) {
    return begin >= one.first && begin + bytes <= one.first + one.second;
  });
  if (block == memory_.end() || bytes == 0) return mistake("what is registered is no memory of NCCL's");
  registered_[++handles_] = {comm, begin, bytes};
  *handle = reinterpret_cast<void*>(handles_);
  return nccl::kSuccess;
}

int FakeRegistry::discharge(const ncclComm* comm, void* handle) {
  const auto found = registered_.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found == registered_.end() || found->second.comm != comm) return mistake("what is not registered is taken back");
  registered_.erase(found);
  return nccl::kSuccess;
}

int FakeRegistry::end(const ncclComm* comm, bool is_aborted) {
  const auto left = std::erase_if(registered_, [&](const auto& one) { return one.second.comm == comm; });
  return left > 0 && !is_aborted ? mistake("a communicator is destroyed with memory registered") : nccl::kSuccess;
}

std::int64_t FakeRegistry::place_of(const ncclComm* comm, const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  for (const auto& [handle, one] : registered_) {
    if (one.comm == comm && at >= one.begin && at < one.begin + one.bytes) return at - one.begin;
  }
  return -1;
}

}  // namespace zs::test
