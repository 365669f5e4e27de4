#pragma once

#include <catch2/catch.hpp>

#include "comm/gpu/gpu_world.h"
#include "kernels/kernels.h"
#include "tests/comm/conformance.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/fake_nccl.h"
#include "tests/gpu/emulation/kernels.h"

namespace zs::test {

/// Worlds of emulated GPUs, one a rank, with an NCCL between them.
struct GpuWorlds {
  explicit GpuWorlds(int ranks, std::uint64_t seed = 1)
      : driver({.gpus = ranks, .memory_bytes = std::int64_t{4} << 30, .seed = seed, .kernels = emulated_kernels()}),
        nccl(driver, seed) {}

  using Body = std::function<void(World& world, CudaDevice& device)>;
  void run(int ranks, bool over_nccl, const WorldOptions& options, const Body& body, bool checks_order = true) {
    run_local_world(ranks, options, [&](World& base) {
      DeviceOptions gpu = patient();
      gpu.gpu = base.rank();
      CudaDevice device(gpu, driver.table());
      const NcclOptions wanted{.timeout_s = options.timeout_s,
                               .arithmetic = GpuArithmetic::of(cuda_kernels()),
                               .checks_order = checks_order,
                               .table = nccl.table()};
      const auto world = over_nccl ? make_nccl_world(base, device, wanted)
                                   : make_staged_world(base, device, options.timeout_s, wanted.arithmetic);
      body(*world, device);
    });
  }

  EmulatedDriver driver;
  FakeNccl nccl;
};

/// All that need nothing which the transport lacks.
inline void run_cases(std::span<const ConformanceCase> cases, int ranks, bool over_nccl, unsigned lacks) {
  for (const ConformanceCase& one : cases) {
    if ((one.needs & lacks) != 0) continue;
    DYNAMIC_SECTION(ranks << " ranks: " << one.name) {
      GpuWorlds gpus(ranks, static_cast<std::uint64_t>(ranks));
      REQUIRE_NOTHROW(
          gpus.run(ranks, over_nccl, {60}, [&](World& world, CudaDevice& device) { one.run(world, device); }));
      CHECK(gpus.driver.live_handles() == 0);
      CHECK(gpus.nccl.live() == 0);
    }
  }
}

}  // namespace zs::test
