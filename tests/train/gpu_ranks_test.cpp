// Which GPU each rank has and what connects them, from what the ranks tell each other.
#include "model/train/plan/gpu_ranks.h"

#include <catch2/catch.hpp>
#include <vector>

#include "model/train/rank/error_line.h"

namespace gpu_ranks_test {

using namespace zs;
using Catch::Contains;

namespace {

std::vector<CudaGpu> gpus(int count) {
  std::vector<CudaGpu> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    all[static_cast<std::size_t>(i)].ordinal = i;
    all[static_cast<std::size_t>(i)].uuid = fmt::format("{:032x}", 1000 + i);
  }
  return all;
}

/// `ranks` of one host, with NCCL, on so many GPUs.
std::vector<RankGpu> rank_gpus(int ranks, int count) {
  std::vector<RankGpu> all;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(rank_gpu_of(gpus(count), r));
    all.back().nccl_version = 22800;
  }
  return all;
}

Config::Cuda wish(const std::string& transport = "auto", bool shares = false) {
  Config::Cuda cuda;
  cuda.share_gpu = shares;
  cuda.transport = transport;
  return cuda;
}

std::string refusal(const std::vector<RankGpu>& ranks, const Config::Cuda& wanted) {
  try {
    choose_gpu_transport(ranks, wanted);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::config);
    return error_line(error);
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("ranks of a host take its GPUs in turn") {
  CHECK(rank_gpu_of(gpus(4), 2).gpu == 2);
  CHECK(rank_gpu_of(gpus(2), 3).gpu == 1);
  CHECK(rank_gpu_of(gpus(1), 3).gpu == 0);  // each process may be shown another one
  CHECK(rank_gpu_of(gpus(2), 1).uuid == rank_gpu_of(gpus(2), 3).uuid);
  CHECK(rank_gpu_of(gpus(2), 1).uuid != rank_gpu_of(gpus(2), 2).uuid);
}

TEST_CASE("GPUs of one rank each are connected by NCCL, or staged where that is said") {
  const GpuRanks found = choose_gpu_transport(rank_gpus(4, 4), wish());
  CHECK(found.transport == Transport::nccl);
  CHECK(found.ranks_a_gpu == 1);
  CHECK(found.note().empty());
  CHECK(choose_gpu_transport(rank_gpus(4, 4), wish("nccl", true)).transport == Transport::nccl);
  const GpuRanks staged = choose_gpu_transport(rank_gpus(4, 4), wish("staged"));
  CHECK(staged.transport == Transport::staged);
  CHECK(staged.note().empty());  // it was asked for
  CHECK(choose_gpu_transport(rank_gpus(1, 4), wish("nccl")).transport == Transport::local);
}

TEST_CASE("without NCCL on every rank the ranks are staged, and one line says why") {
  auto ranks = rank_gpus(3, 3);
  ranks[1].nccl_version = 0;
  const GpuRanks found = choose_gpu_transport(ranks, wish());
  CHECK(found.transport == Transport::staged);
  CHECK(found.note() ==
        "what GPUs exchange goes through the hosts' memory: rank 1 has no NCCL of version 2.18 or newer "
        "(cuda.transport)");
  CHECK(found.is_warning);
  ranks[1].set_nccl_lack("no NCCL here (libnccl.so.2: cannot open shared object file)");
  CHECK_THAT(choose_gpu_transport(ranks, wish()).note(),
             Contains("rank 1 has no NCCL of version 2.18 or newer: no NCCL here (libnccl.so.2: cannot open shared "
                      "object file) (cuda.transport)"));
  ranks[1].set_nccl_lack(std::string(1000, 'x'));
  CHECK_THAT(choose_gpu_transport(ranks, wish()).note(), Contains(": " + std::string(199, 'x') + " ("));
  ranks[1].set_nccl_lack("");
  CHECK_THAT(
      refusal(ranks, wish("nccl")),
      Contains("rank 1 has no NCCL of version 2.18 or newer (cuda.transport = \"nccl\"): name the folder of libnccl"));
  ranks[1].nccl_version = 22703;
  CHECK_THAT(choose_gpu_transport(ranks, wish()).note(), Contains("rank 0 has NCCL 22800, rank 1 has 22703"));
  CHECK_THAT(refusal(ranks, wish("nccl")), Contains("let every rank load the same libnccl.so.2"));
}

TEST_CASE(
    "graphs of steps are for one rank and for what NCCL connects: ranks that are staged are refused, with why they "
    "are") {
  Config::Cuda wanted = wish();
  wanted.graph = true;
  CHECK(choose_gpu_transport(rank_gpus(3, 3), wanted).transport == Transport::nccl);
  CHECK(choose_gpu_transport(rank_gpus(1, 1), wanted).transport == Transport::local);
  auto lacking = rank_gpus(3, 3);
  lacking[1].nccl_version = 0;
  CHECK(refusal(lacking, wanted) ==
        "train: error: cuda.graph = true does not go with ranks that are staged: rank 1 has no NCCL of version 2.18 or "
        "newer (the hosts "
        "move what they exchange, in mid-step): leave it out, or let NCCL connect the GPUs (cuda.transport)");
  wanted.share_gpu = true;
  CHECK_THAT(refusal(rank_gpus(2, 1), wanted), Contains("ranks that are staged: ranks 0 and 1 share one (the hosts"));
  wanted.transport = "staged";
  CHECK_THAT(refusal(rank_gpus(3, 3), wanted), Contains("does not go with ranks that are staged (the hosts"));
}

TEST_CASE("two ranks on one GPU are refused unless they may share it") {
  CHECK(refusal(rank_gpus(4, 2), wish()) ==
        "train: error: ranks 0 and 2 would share GPU 0, of 2 that the driver shows (device = \"cuda\"): start at most "
        "one rank for each GPU "
        "of a host, or set cuda.share_gpu = true, or device = \"cpu\"");
  const GpuRanks found = choose_gpu_transport(rank_gpus(5, 2), wish("auto", true));
  CHECK(found.transport == Transport::staged);
  CHECK(found.ranks_a_gpu == 3);
  CHECK_THAT(found.note(), Contains("ranks 0 and 2 share one"));
  CHECK_FALSE(found.is_warning);  // it was allowed by name
  CHECK(choose_gpu_transport(rank_gpus(1, 2), wish()).ranks_a_gpu == 1);
}

TEST_CASE("NCCL on a shared GPU is refused unless its ranks look like hosts of their own") {
  auto ranks = rank_gpus(3, 2);
  CHECK_THAT(refusal(ranks, wish("nccl", true)),
             Contains("ranks 0 and 2 share a GPU, which NCCL refuses") && Contains("NCCL_HOSTID"));
  ranks[0].nccl_host = 7;
  CHECK_THAT(refusal(ranks, wish("nccl", true)), Contains("ranks 0 and 2 share a GPU"));
  ranks[2].nccl_host = 7;
  CHECK_THAT(refusal(ranks, wish("nccl", true)), Contains("ranks 0 and 2 share a GPU"));
  ranks[2].nccl_host = 8;
  CHECK(choose_gpu_transport(ranks, wish("nccl", true)).transport == Transport::nccl);
  CHECK(choose_gpu_transport(ranks, wish("auto", true)).transport == Transport::staged);
}

TEST_CASE("all ranks hear of all seats, so that they choose alike") {
  std::vector<std::string> chosen(3);
  run_local_world(3, {10}, [&](World& world) {
    RankGpu own = rank_gpus(3, 3)[static_cast<std::size_t>(world.rank())];
    if (world.rank() == 2) {
      own.nccl_version = 0;
      own.set_nccl_lack("no such file");
    }
    chosen[static_cast<std::size_t>(world.rank())] =
        choose_gpu_transport(exchange_rank_gpus(world, own), wish()).note();
  });
  CHECK_THAT(chosen[0], Contains("rank 2 has no NCCL of version 2.18 or newer: no such file"));
  CHECK(chosen == std::vector<std::string>(3, chosen[0]));
}

TEST_CASE("a run on GPUs asks for their memory, shared by the ranks that share one") {
  MemoryDemand demand;
  demand.plan.ranks = demand.local_ranks = 4;
  demand.config.train.deterministic = true;
  const MemoryBudget gpu{100, true, "90 % of free memory of GPU 0"};
  const MemoryDemand alone = on_gpus(demand, {.gpus = 4, .transport = Transport::nccl, .ranks_a_gpu = 1}),
                     shared = on_gpus(demand, {.gpus = 1, .transport = Transport::staged, .ranks_a_gpu = 4}),
                     shown_one = on_gpus(demand, {.gpus = 1, .transport = Transport::nccl, .ranks_a_gpu = 1});
  CHECK(alone.plan.transport == Transport::nccl);
  CHECK(alone.plan.device == DeviceKind::cuda);
  CHECK(alone.plan.sums_in_rank_order);
  CHECK(needed_bytes(alone, 30, gpu) == 30);
  CHECK(needed_bytes(shared, 30, gpu) == 120);
  CHECK(needed_bytes(shown_one, 30, gpu) == 30);
  demand.plan.ranks = demand.local_ranks = 3;
  CHECK(needed_bytes(on_gpus(demand, {.gpus = 1, .transport = Transport::staged, .ranks_a_gpu = 2}), 30, gpu) ==
        60);  // two on one, one alone
  demand.plan.ranks = demand.local_ranks = 2;
  CHECK(needed_bytes(on_gpus(demand, {.gpus = 2, .transport = Transport::staged, .ranks_a_gpu = 2}), 30, gpu) ==
        60);  // both on one of two
}

}  // namespace gpu_ranks_test
