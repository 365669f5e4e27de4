#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/gpu_world.h"
#include "comm/world.h"
#include "model/train/config/config.h"
#include "model/train/plan/memory_check.h"
#include "runtime/device/cuda_gpu.h"
#include "runtime/device/device.h"

/// Which GPU each rank computes on, and what connects them.
namespace zs {

/// A rank's GPU, and what it could exchange through, as it tells the others before it allocates anything. Its bytes
/// travel.
struct RankGpu {
  std::array<char, 32> uuid{};        ///< of the GPU: 32 hexadecimal digits
  std::int32_t gpu = 0, gpus = 1;     ///< which of how many the driver shows to this process
  std::int64_t nccl_version = 0;      ///< 22800; 0: it has none, or has not looked
  std::uint64_t nccl_host = 0;        ///< of NCCL_HOSTID; 0: not set
  std::array<char, 200> nccl_lack{};  ///< why it has none, zero-terminated; empty: it has, or has not looked

  void set_nccl_lack(std::string_view why);
};

/// The one of `gpus` whose turn it is: GPU `local_rank` of a host, and from the first again where there are fewer.
RankGpu rank_gpu_of(std::span<const CudaGpu> gpus, int local_rank);

/// Every rank's GPU, in their order. Collective, blocks the host.
std::vector<RankGpu> exchange_rank_gpus(World& world, const RankGpu& own);

/// What the ranks agree on.
struct GpuRanks {
  int gpu = 0, gpus = 1;                   ///< this rank's, of how many that it sees
  Transport transport = Transport::local;  ///< nccl, staged, or null; local: one rank, which exchanges nothing
  int ranks_a_gpu = 1;                     ///< at most
  std::string note = {};                   ///< why they are staged though nobody asked for it; empty: nothing to tell
  bool is_warning = false;                 ///< of the note: NCCL could connect their GPUs, were it there
};

/// From the GPUs of all ranks, for `cuda.transport` and `cuda.share_gpu`. Error(config) where ranks share a GPU and may
/// not, or what is wanted cannot be had. The same on every rank, but for `gpu` and `gpus`, which are not set.
GpuRanks choose_gpu_transport(std::span<const RankGpu> ranks, const Config::Cuda& wanted);

/// Collective, before anything is allocated: 0, or the exit code of all ranks, of which one prints why. Where the
/// configuration's device is no GPU: nothing. `planned_ranks`: as many as the world's, or, for the plan of one rank
/// alone, as many as this host would have. `program`: in whose name it is printed.
int find_gpus(World& world, const Config& config, int planned_ranks, GpuRanks& found,
              const std::string& program = "train");

/// A plan for hosts as one for their GPUs.
PlanOptions on_gpus(PlanOptions plan, const Config& config, const GpuRanks& gpus);
/// A demand for the hosts' memory as one for that of GPUs.
MemoryDemand on_gpus(MemoryDemand demand, const GpuRanks& gpus);
/// For people: "nccl, started over shm".
std::string describe_transport(const World& base, const GpuRanks& gpus);

/// What moves the bytes between the GPUs of `base`'s ranks; both and `device` outlive it. Null where `base` itself
/// does. Collective.
std::unique_ptr<World> make_gpu_world(World& base, Device& device, Transport transport, const NcclOptions& nccl);
NcclOptions nccl_options(const Config& config);
/// Gives them memory that is registered, where NCCL is the transport, has it, and `cuda.register` asks for it: for
/// DeviceOptions::memory.
void register_memory(NcclOptions& nccl, const Config& config, Transport transport);
/// For people, once there are communicators: "nccl: 1.2 GiB registered with 3 communicators"; nothing where nobody asks
/// for that.
std::string describe_registration(const World& world, const Config& config);

}  // namespace zs
