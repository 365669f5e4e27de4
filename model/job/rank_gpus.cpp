#include "model/job/rank_gpus.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <type_traits>

#include "comm/inline_stream.h"
#include "comm/nccl/nccl_library.h"
#include "runtime/base/random.h"
#include "runtime/device/cublas_lt.h"

namespace zs {
namespace {

/// Compute capability of a GPU that has all that the kernels use: bf16 on tensor cores.
constexpr int kLeastComputeCapability = 8;

constexpr const char *kWhere = "device = \"cuda\"", *kNcclWhere = "cuda.transport = \"nccl\"";

/// NCCL where it may be wanted: without it the ranks are staged, unless it is asked for by its name.
void look_for_nccl(RankGpu& rank_gpu, const GpuOptions& cuda) {
  if (cuda.transport == "staged") return;
  if (const char* const host = std::getenv("NCCL_HOSTID"); host != nullptr) rank_gpu.nccl_host = hash_name(host);
  try {
    const char* const name = NcclOptions{}.library;
    rank_gpu.nccl_version = version_of(*open_nccl_library(name, cuda.libraries), name);
  } catch (const Error& error) {
    if (cuda.transport == "nccl") throw;
    rank_gpu.set_nccl_lack(error.what_happened());
  }
}

/// Two ranks, the lower first, of which something holds.
struct Pair {
  std::size_t first, second;
};

template <class Holds>
std::optional<Pair> find_pair(std::size_t ranks, const Holds& holds) {
  for (std::size_t second = 1; second < ranks; ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      if (holds(first, second)) return Pair{first, second};
    }
  }
  return std::nullopt;
}

/// Error by which NCCL cannot connect them; nothing where it can.
std::optional<Error> what_nccl_lacks(std::span<const RankGpu> ranks) {
  const auto lacking =
      std::find_if(ranks.begin(), ranks.end(), [](const RankGpu& rank_gpu) { return rank_gpu.nccl_version == 0; });
  if (lacking != ranks.end()) {
    const std::string_view why = lacking->nccl_lack.data();
    return Error(ExitCode::config,
                 fmt::format("rank {} has no NCCL of version 2.18 or newer{}{}", lacking - ranks.begin(),
                             why.empty() ? "" : ": ", why),
                 kNcclWhere, "name the folder of libnccl.so.2 in cuda.libraries, or use \"staged\"");
  }
  if (const auto other =
          find_pair(ranks.size(), [&](auto a, auto b) { return ranks[a].nccl_version != ranks[b].nccl_version; })) {
    return Error(ExitCode::config,
                 fmt::format("rank {} has NCCL {}, rank {} has {}", other->first, ranks[other->first].nccl_version,
                             other->second, ranks[other->second].nccl_version),
                 kNcclWhere, "let every rank load the same libnccl.so.2");
  }
  const auto clashes = [&](std::size_t a, std::size_t b) {
    const bool look_apart =
        ranks[a].nccl_host != 0 && ranks[b].nccl_host != 0 && ranks[a].nccl_host != ranks[b].nccl_host;
    return ranks[a].uuid == ranks[b].uuid && !look_apart;
  };
  if (const auto pair = find_pair(ranks.size(), clashes)) {
    return Error(ExitCode::config,
                 fmt::format("ranks {} and {} share a GPU, which NCCL refuses", pair->first, pair->second), kNcclWhere,
                 "use \"staged\", or give each rank an NCCL_HOSTID of its own (docs/gpu.md)");
  }
  return std::nullopt;
}

int most_alike(std::span<const RankGpu> ranks) {
  std::map<std::array<char, 32>, int> counts;
  int most = 1;
  for (const RankGpu& rank_gpu : ranks) most = std::max(most, ++counts[rank_gpu.uuid]);
  return most;
}

}  // namespace

GpuLook look_for_gpu(const std::string& libraries) {
  GpuLook look;
  try {
    for (const CudaGpu& gpu : visible_gpus()) {
      look.sees_gpu = true;
      if (gpu.major >= kLeastComputeCapability) continue;
      look.lacks = fmt::format("{} has compute capability {}.{}, of {}.0 at least", gpu.describe(), gpu.major,
                               gpu.minor, kLeastComputeCapability);
    }
  } catch (const Error& error) {
    look.lacks = error.what_happened();
  }
  if (!look.lacks.empty()) return look;
  try {
    static_cast<void>(open_cublas_lt(libraries));
  } catch (const Error& error) {
    look.lacks = error.what_happened();
    look.lacks_library = true;
  }
  return look;
}

DeviceChoice choose_device(World& world, const GpuLook& own, const RunTogether& together) {
  // Whoever has a GPU expects it to be used: hours on the CPU are no answer to a library that is not found.
  together([&] {
    if (own.lacks_library)
      throw Error(ExitCode::config, fmt::format("there is a GPU, but it cannot be used: {}", own.lacks),
                  "device = \"auto\"",
                  "name the folder of CUDA's libcublasLt.so in cuda.libraries, or set device = \"cpu\"");
  });
  const World::Agreement lack = world.agree(own.lacks.empty() ? 0 : 1, own.lacks);
  const bool is_seen = world.agree(own.sees_gpu ? 1 : 0, "").code != 0;
  if (lack.code == 0) return {.kind = DeviceKind::cuda};
  if (!is_seen) return {};
  return {.note = fmt::format("device \"auto\" is the CPU, although there is a GPU: {} (rank {})", lack.message,
                              lack.rank)};
}

void RankGpu::set_nccl_lack(std::string_view why) {
  nccl_lack.fill(0);
  std::copy_n(why.begin(), std::min(why.size(), nccl_lack.size() - 1), nccl_lack.begin());
}

RankGpu rank_gpu_of(std::span<const CudaGpu> gpus, int local_rank) {
  ZS_CHECK(!gpus.empty() && local_rank >= 0, "a GPU for rank {} of a host, of {} GPUs", local_rank, gpus.size());
  RankGpu rank_gpu;
  rank_gpu.gpus = static_cast<std::int32_t>(gpus.size());
  rank_gpu.gpu = local_rank % rank_gpu.gpus;
  const std::string& uuid = gpus[static_cast<std::size_t>(rank_gpu.gpu)].uuid;
  std::copy_n(uuid.begin(), std::min(uuid.size(), rank_gpu.uuid.size()), rank_gpu.uuid.begin());
  return rank_gpu;
}

std::vector<RankGpu> exchange_rank_gpus(World& world, const RankGpu& own) {
  static_assert(std::is_trivially_copyable_v<RankGpu>);
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(RankGpu));
  std::vector<RankGpu> rank_gpus(static_cast<std::size_t>(world.size()));
  const Buffer all{rank_gpus.data(), world.size() * kBytes, DType::u8, DeviceKind::cpu},
      mine = all.slice(world.rank() * kBytes, kBytes);
  std::memcpy(mine.data, &own, sizeof own);
  const auto comm = world.communicator();
  InlineStream stream;
  comm->all_gather(stream, "gpus", mine, all);
  return rank_gpus;
}

std::string GpuRanks::note() const {
  if (why_staged.empty()) return {};
  return fmt::format("what GPUs exchange goes through the hosts' memory: {} (cuda.transport)", why_staged);
}

GpuRanks choose_gpu_transport(std::span<const RankGpu> ranks, const GpuOptions& wanted) {
  GpuRanks found{.ranks_a_gpu = most_alike(ranks)};
  const auto shared = find_pair(ranks.size(), [&](auto a, auto b) { return ranks[a].uuid == ranks[b].uuid; });
  if (shared && !wanted.share_gpu) {
    const RankGpu& rank_gpu = ranks[shared->second];
    throw Error(ExitCode::config,
                fmt::format("ranks {} and {} would share GPU {}, of {} that the driver shows", shared->first,
                            shared->second, rank_gpu.gpu, rank_gpu.gpus),
                kWhere,
                "start at most one rank for each GPU of a host, or set cuda.share_gpu = true, or device = \"cpu\"");
  }
  if (ranks.size() == 1) return found;
  found.transport = Transport::staged;
  if (wanted.transport == "staged") return found;
  const std::optional<Error> lack = what_nccl_lacks(ranks);
  if (lack && wanted.transport == "nccl") throw Error(*lack);
  if (!lack && (wanted.transport == "nccl" || !shared)) {
    found.transport = Transport::nccl;
  } else {
    found.why_staged =
        shared ? fmt::format("ranks {} and {} share one", shared->first, shared->second) : lack->what_happened();
    found.is_warning = !shared;
  }
  return found;
}

GpuRanks find_rank_gpus(World& world, const GpuSearch& search, const RunTogether& together) {
  std::vector<CudaGpu> gpus;
  RankGpu own;
  together([&] {
    gpus = visible_gpus();
    own = rank_gpu_of(gpus, world.local_rank());
    if (search.planned_ranks > 1) look_for_nccl(own, search.cuda);
  });
  if (transport_of(world) == Transport::null)  // no rank tells the others what it has
    return {.gpu = own.gpu, .gpus = own.gpus, .transport = Transport::null};
  std::vector<RankGpu> rank_gpus = exchange_rank_gpus(world, own);
  for (int rank = world.size(); rank < search.planned_ranks; ++rank) {
    rank_gpus.push_back(rank_gpu_of(gpus, rank));
    rank_gpus.back().nccl_version = own.nccl_version;
    rank_gpus.back().nccl_lack = own.nccl_lack;
  }
  GpuRanks found;
  together([&] {
    found = choose_gpu_transport(rank_gpus, search.cuda);
    if (search.check) search.check(found);
  });
  found.gpu = own.gpu;
  found.gpus = own.gpus;
  return found;
}

std::unique_ptr<World> make_gpu_world(World& base, Device& device, Transport transport, const NcclOptions& nccl) {
  switch (transport) {
    case Transport::nccl: return make_nccl_world(base, device, nccl);
    case Transport::staged: return make_staged_world(base, device, nccl.timeout_s, nccl.arithmetic);
    case Transport::local: return make_single_world({});
    default: return nullptr;
  }
}

}  // namespace zs
