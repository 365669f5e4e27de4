// The communicator suite over GPU buffers, run by mpirun: staged|nccl. On this machine's first GPU, which all ranks
// share, or on an emulated one for each rank, where there is no NCCL. Exit 0: all passed.
#include <cstdio>
#include <cstdlib>

#include "comm/gpu/gpu_world.h"
#include "kernels/kernels.h"
#include "runtime/device/cuda_device.h"
#include "tests/comm/arrays.h"
#include "tests/comm/conformance.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/gpu/real_gpu.h"

using namespace zs;
using namespace zs::test;

namespace {

constexpr double kTimeout_s = 60;

/// NCCL refuses two ranks on one GPU of one host: each looks like a host of its own, which exchanges through the
/// network. Before there are threads.
void look_like_a_host() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const std::string id = std::string("zshard-test-") + (rank == nullptr ? "0" : rank);
  for (const auto& [name, value] : {std::pair("NCCL_HOSTID", id.c_str()),
                                    {"NCCL_P2P_DISABLE", "1"},
                                    {"NCCL_SHM_DISABLE", "1"},
                                    {"NCCL_SOCKET_IFNAME", "lo"}})
    if (setenv(name, value, 1) != 0) throw std::runtime_error("no room for the environment");
}

int run(World& base, bool over_nccl) {
  std::unique_ptr<EmulatedDriver> emulated;
  if (!is_on_real_gpu())
    emulated = std::make_unique<EmulatedDriver>(EmulatedDriver::Options{.kernels = emulated_kernels()});
  DeviceOptions options;
  options.sync_timeout_s = 2 * kTimeout_s;
  options.shares_gpu = true;
  CudaDevice device(options, emulated ? emulated->table() : open_cuda_driver());
  const auto pinned = make_pinned_allocator(device.context());
  memory_of_gpu_arrays() = pinned.get();
  const NcclOptions nccl{.timeout_s = kTimeout_s, .arithmetic = GpuArithmetic::of(cuda_kernels())};
  const auto world =
      over_nccl ? make_nccl_world(base, device, nccl) : make_staged_world(base, device, kTimeout_s, nccl.arithmetic);
  const unsigned lacks = kHostMemory | kAnyOrder | (over_nccl ? kWrittenOrder | kNansWin | kAnyAccumulator : 0);
  const auto run_cases = [&](std::span<const ConformanceCase> cases) {
    for (const ConformanceCase& one : cases) {
      if ((one.needs & lacks) != 0) continue;
      try {
        one.run(*world, device);
      } catch (const std::exception& error) {
        throw std::runtime_error(std::string(one.name) + ": " + error.what());
      }
    }
  };
  run_cases(operation_cases());
  if (!over_nccl && base.size() > 1) run_cases(disagreement_cases());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view transport = argc > 1 ? argv[1] : "";
  if (transport != "staged" && transport != "nccl") {
    std::fprintf(stderr, "usage: %s staged|nccl\n", argv[0]);
    return static_cast<int>(ExitCode::usage);
  }
  if (transport == "nccl") {
    set_nccl_environment();
    look_like_a_host();
  }
  const auto base = make_process_world({.timeout_s = kTimeout_s}, "mpi");
  try {
    return run(*base, transport == "nccl");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", base->rank(), error.what());
    base->abort(1);
    return 1;
  }
}
