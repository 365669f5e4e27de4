#pragma once

#include <functional>
#include <memory>

#include "bench/common/machine.h"
#include "runtime/device/cuda_device.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/fake_nccl.h"
#include "tests/gpu/emulation/kernels.h"

namespace zs::test {

/// GPUs for benchmarks, whose name is "Emulated", and an NCCL between them. Where the host touches their memory, the
/// test ends by a signal.
struct Emulated {
  explicit Emulated(int gpus = 1, std::map<std::string, EmulatedKernel> kernels = emulated_kernels())
      : driver({.gpus = gpus, .is_guarded = true, .kernels = std::move(kernels)}) {}

  EmulatedDriver driver;
  EmulatedCublas cublas{driver};
  FakeNccl nccl{driver, 1};

  std::unique_ptr<Device> make(const DeviceOptions& options = {}) {
    return std::make_unique<CudaDevice>(options, CudaContext::Libraries(driver.table(), cublas.table()));
  }
  TrainPlan::MakeDevice maker() {
    return [this](DeviceKind kind, const DeviceOptions& options) {
      return kind == DeviceKind::cuda ? make(options) : Device::create(kind, options);
    };
  }
  /// Of one rank, with ceilings that are measured on little.
  bench::Machine machine(const GpuRanks& found = {}) {
    return {.gpus = found,
            .make_device = maker(),
            .gpu_ceilings = {.sample_ms = 0, .copy_bytes = 1 << 12, .product_size = 32},
            .nccl = nccl.table()};
  }
  /// Runs `body` on each of so many ranks, which are threads, each with a GPU of its own.
  void run(int ranks, Transport transport, const std::function<void(World&, const bench::Machine&)>& body) {
    run_local_world(ranks, {.timeout_s = 120}, [&](World& world) {
      body(world, machine({.gpu = world.rank(), .gpus = ranks, .transport = transport}));
    });
  }
};

}  // namespace zs::test
