#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/gpu/gpu_world.h"
#include "comm/world.h"
#include "model/job/gpu_options.h"
#include "runtime/device/cuda_gpu.h"
#include "runtime/device/device.h"

/// GPUs of ranks: whether ranks compute on them, on which one each, and what connects them. For the trainer and for
/// zs::run.
namespace zs {

/// Result of a rank's look for a GPU.
struct GpuLook {
  bool sees_gpu = false;
  std::string lacks;  ///< why it could not use one all the same, or at all; empty: nothing is missing
  /// Says that what it lacks, for a GPU that could be used, is a library which is not found or cannot be loaded.
  bool lacks_library = false;
};
/// `libraries`: folders, see DeviceOptions.
GpuLook look_for_gpu(const std::string& libraries);

/// Runs its argument on every rank of a world, and throws on all of them what it threw on the lowest: as together().
using RunTogether = std::function<void(const std::function<void()>& body)>;

/// Device that `device = "auto"` comes to.
struct DeviceChoice {
  DeviceKind kind = DeviceKind::cpu;
  std::string note = {};  ///< why no GPU is used where some rank sees one; empty: nothing to tell
};
/// Collective: "cuda" where no rank lacks anything, else "cpu". An Error(config) through `together` where some rank
/// lacks nothing but a library.
DeviceChoice choose_device(World& world, const GpuLook& own, const RunTogether& together);

/// A rank's GPU, and what it could exchange through, as it tells the others before it allocates anything. Its bytes
/// travel.
struct RankGpu {
  std::array<char, 32> uuid{};        ///< uuid of the GPU: 32 hexadecimal digits
  std::int32_t gpu = 0, gpus = 1;     ///< index of the GPU, and how many the driver shows to this process
  std::int64_t nccl_version = 0;      ///< 22800; 0: it has none, or has not looked
  std::uint64_t nccl_host = 0;        ///< hash of NCCL_HOSTID; 0: not set
  std::array<char, 200> nccl_lack{};  ///< why it has none, zero-terminated; empty: it has, or has not looked

  void set_nccl_lack(std::string_view why);
};

/// The one of `gpus` whose turn it is: GPU `local_rank` of a host, and from the first again where there are fewer.
RankGpu rank_gpu_of(std::span<const CudaGpu> gpus, int local_rank);

/// Every rank's GPU, in their order. Collective, blocks the host.
std::vector<RankGpu> exchange_rank_gpus(World& world, const RankGpu& own);

/// GPUs and transport that the ranks agree on.
struct GpuRanks {
  int gpu = 0, gpus = 1;                   ///< this rank's, of how many that it sees
  Transport transport = Transport::local;  ///< nccl, staged, or null; local: one rank, which exchanges nothing
  int ranks_a_gpu = 1;                     ///< at most
  std::string why_staged = {};             ///< though nobody asked for it; empty: they are not, or somebody did
  bool is_warning = false;                 ///< `why_staged` is a warning: NCCL could connect their GPUs, were it there

  /// Note about the choice for people; empty: nothing to tell.
  std::string note() const;
};

/// Chooses from the GPUs of all ranks. Error(config) where ranks share a GPU and may not, or what is wanted cannot be
/// had. The same on every rank, but for `gpu` and `gpus`, which are not set.
GpuRanks choose_gpu_transport(std::span<const RankGpu> ranks, const GpuOptions& wanted);

struct GpuSearch {
  GpuOptions cuda = {};
  int planned_ranks = 1;  ///< as many as the world's, or, of one rank alone, as many as its host would have
  /// Checks that the ranks may use what was found; throws where not.
  std::function<void(const GpuRanks& found)> check = {};
};
/// Collective, before anything is allocated: looks for the GPUs of all ranks, and chooses what connects them.
GpuRanks find_rank_gpus(World& world, const GpuSearch& search, const RunTogether& together);

/// World that moves the bytes between the GPUs of `base`'s ranks; both and `device` outlive it. Null where `base`
/// itself does. Collective.
std::unique_ptr<World> make_gpu_world(World& base, Device& device, Transport transport, const NcclOptions& nccl);

}  // namespace zs
