#include "runtime/device/device.h"

#include <cstdio>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/device/cpu_device.h"
#include "runtime/device/cuda_device.h"
#include "runtime/device/memory_limit.h"
#include "runtime/device/meta_device.h"

namespace zs {
namespace {

void log_unwaited(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "zshard: work that nobody waited for failed: %s\n", e.what());
  } catch (...) {
    std::fputs("zshard: work that nobody waited for failed\n", stderr);
  }
}

#ifndef ZSHARD_CUDA
Error no_cuda() { return {ExitCode::config, "device 'cuda' is not in this build", {}, "use device \"cpu\""}; }
#endif

}  // namespace

Device::Device(DeviceOptions options) : options_(std::move(options)) {}

Device::~Device() {
  if (kept_error_) log_unwaited(kept_error_);
}

std::unique_ptr<Device> Device::create(DeviceKind kind, const DeviceOptions& options) {
  if (options.threads < 1)
    throw UsageError(fmt::format("a device with {} threads", options.threads), "give it 1 or more");
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

void Device::keep_error(std::exception_ptr error) noexcept {
  if (!kept_error_) kept_error_ = std::move(error);
}

void Device::forget_thrown() {
  const std::exception_ptr thrown = last_thrown();
  if (!thrown) return;
  for (int role = 0; role < kStreamRoles; ++role) {
    Stream& one = stream(static_cast<StreamRole>(role));
    try {
      one.synchronize();
    } catch (const SyncTimeout&) {
      throw;
    } catch (...) {
      if (const std::exception_ptr error = std::current_exception(); error != thrown)
        one.enqueue({"failed_before", {}, {}}, [error](ExecContext&) { std::rethrow_exception(error); });
    }
  }
}

void Device::synchronize() {
  std::exception_ptr first = std::exchange(kept_error_, nullptr);
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
