#include "runtime/device/device.h"

#include "runtime/device/cpu_device.h"
#include "runtime/device/cuda_device.h"
#include "runtime/device/memory_limit.h"
#include "runtime/device/meta_device.h"

namespace zs {
namespace {

#ifndef ZSHARD_CUDA
Error no_cuda() { return {ExitCode::config, "device 'cuda' is not in this build", {}, "use device \"cpu\""}; }
#endif

}  // namespace

Device::Device(DeviceOptions options) : options_(std::move(options)) {}

Device::~Device() = default;

std::unique_ptr<Device> Device::create(DeviceKind kind, const DeviceOptions& options) {
  ZS_CHECK(options.threads >= 1, "a device needs at least 1 thread, got {}", options.threads);
  switch (kind) {
    case DeviceKind::cpu: return std::make_unique<CpuDevice>(options);
    case DeviceKind::meta: return std::make_unique<MetaDevice>(options);
    case DeviceKind::cuda: break;
  }
#ifdef ZSHARD_CUDA
  return std::make_unique<CudaDevice>(
      options, CudaContext::Libraries(open_cuda_driver(), open_cublas_lt(options.libraries), Nvtx::of_process()));
#else
  throw no_cuda();
#endif
}

std::vector<CudaGpu> visible_gpus() {
#ifdef ZSHARD_CUDA
  return cuda_gpus(*open_cuda_driver());
#else
  throw no_cuda();
#endif
}

MemoryLimit gpu_memory_limit([[maybe_unused]] int gpu) {
#ifdef ZSHARD_CUDA
  const CudaContext context(open_cuda_driver(), gpu, true);
  return cuda_memory_limit(context);
#else
  throw no_cuda();
#endif
}

void Device::synchronize() {
  std::exception_ptr first;
  for (int role = 0; role < kStreamRoles; ++role) {
    try {
      stream(static_cast<StreamRole>(role)).synchronize();
    } catch (const SyncTimeout&) {
      throw;  // the others wait for the same culprit
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace zs
