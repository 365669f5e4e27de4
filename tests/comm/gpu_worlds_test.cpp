// The transports over GPU buffers: ranks are threads, each with an emulated GPU, over the local transport between their
// hosts.
#include <catch2/catch.hpp>

#include "tests/comm/arrays.h"
#include "tests/comm/gpu_worlds.h"
#include "tests/message_of.h"

namespace gpu_worlds_test {

using namespace zs;
using namespace zs::test;
using Catch::Contains;

TEST_CASE("the staged transport does what every transport does, with the sums of the one below it") {
  run_cases(operation_cases(), GENERATE(1, 2, 3, 4), false, kHostMemory | kAnyOrder);
}

TEST_CASE("the staged transport catches ranks that disagree") {
  run_cases(disagreement_cases(), GENERATE(2, 3), false, 0);
}

TEST_CASE("the staged transport names a rank that never comes") {
  GpuWorlds gpus(3);
  REQUIRE_NOTHROW(
      gpus.run(3, false, {1}, [](World& world, CudaDevice& device) { expect_lost_peer_is_named(world, device, 1); }));
}

TEST_CASE("a staged operation waits for its own GPU no longer than it may") {
  GpuWorlds gpus(1);
  gpus.run(1, false, {0.05}, [&](World& world, CudaDevice& device) {
    const auto comm = world.communicator();
    gpus.driver.stand_still(true);
    Stream& stream = device.stream(StreamRole::compute);
    Memory memory = device.pool().acquire(64, stream, "data");
    comm->all_reduce(stream, "blocks.3", memory.buffer(DType::f32, 16), ReduceOp::sum);
    gpus.driver.stand_still(false);
    CHECK_THAT(coded_message_of([&] { stream.synchronize(); }),
               Contains("69: all_reduce(blocks.3) sum waited 0.05 s for this rank's GPU (GPU 0 (Emulated))"));
  });
}

TEST_CASE("two ranks on one GPU are refused by NCCL and served by the staged transport") {
  EmulatedDriver driver;
  FakeNccl nccl(driver, 1);
  std::vector<std::string> said(2);
  const auto run = [&](bool over_nccl) {
    run_local_world(2, {2}, [&](World& base) {
      DeviceOptions gpu = patient();
      gpu.shares_gpu = true;
      CudaDevice device(gpu, driver.table());
      auto& message = said[static_cast<std::size_t>(base.rank())];
      try {
        const auto world = over_nccl ? make_nccl_world(base, device, {.timeout_s = 0.3, .table = nccl.table()})
                                     : make_staged_world(base, device, 2);
        const auto comm = world->communicator();
        comm->barrier(device.stream(StreamRole::compute), "unit");
        device.synchronize();
        message = "served";
      } catch (const Error& error) {
        message = error.what();
      }
      base.agree(0, "");
    });
  };
  run(true);
  CHECK_THAT(said[0] + said[1], Contains("ncclCommInitRankConfig: NCCL error 5"));
  run(false);
  CHECK(said == std::vector<std::string>{"served", "served"});
}

TEST_CASE("nothing travels as int8 between GPUs without their arithmetic") {
  GpuWorlds gpus(1);
  const bool over_nccl = GENERATE(true, false);
  gpus.run(1, false, {1}, [&](World&, CudaDevice& device) {
    const auto base = make_single_world({});
    const auto world = over_nccl ? make_nccl_world(*base, device, {.timeout_s = 1, .table = gpus.nccl.table()})
                                 : make_staged_world(*base, device, 1);
    const auto comm = world->communicator();
    const Array<float> data(*comm, 8);
    try {
      comm->reduce_scatter(device.stream(StreamRole::reduce), "blocks.3", data.buffer(), data.buffer(),
                           ReduceInto::overwrite, CommDType::int8);
      FAIL("int8 was taken");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::config);
      CHECK_THAT(error.what(), Contains("sends nothing as int8 (reduce_scatter(blocks.3) on rank 0 of 1)"));
    }
  });
}

TEST_CASE("the scratch that reductions and gathers between GPUs take is planned") {
  const bool over_nccl = GENERATE(true, false);
  const CommDType comm_dtype = GENERATE(CommDType::exact, CommDType::int8);
  GpuWorlds gpus(2);
  std::atomic<int> wrong{0};
  gpus.run(2, over_nccl, {20}, [&](World& world, CudaDevice& device) {
    const auto meta = Device::create(DeviceKind::meta, {});
    const auto planned = make_meta_world(world.rank(), world.size(), transport_info_of(world));
    const auto bytes_of = [&](World& one, Device& where) {
      const auto reduces = one.communicator(), gathers = one.communicator();
      Stream &stream = where.stream(StreamRole::reduce), &unshard = where.stream(StreamRole::unshard);
      const Memory memory = where.pool().acquire(4096, stream, "data"),
                   out = where.pool().acquire(4096, stream, "data");
      for (const ReduceInto into : {ReduceInto::overwrite, ReduceInto::accumulate}) {
        reduces->reduce_scatter(stream, "unit", memory.buffer(DType::bf16, 1024), out.buffer(DType::f32, 512), into,
                                comm_dtype);
        reduces->reduce_scatter(stream, "unit", memory.buffer(DType::f32, 1024), out.buffer(DType::f32, 512), into,
                                comm_dtype);
      }
      gathers->all_gather(unshard, "unit", out.buffer(DType::f32, 512), memory.buffer(DType::f32, 1024));
      if (where.kind() != DeviceKind::meta) where.synchronize();
      return where.scratch().bytes();
    };
    wrong += bytes_of(world, device) != bytes_of(*planned, *meta);
    const auto bytes = device.scratch().bytes();
    const auto of = [&](StreamRole role) { return bytes[static_cast<std::size_t>(role)]; };
    const bool is_packed = comm_dtype == CommDType::int8;  // two slices of 512 and their scales: 576 bytes each
    wrong += of(StreamRole::reduce) != (is_packed ? 2 * 2 * 576 : over_nccl ? 2048 : 0);
    wrong += of(StreamRole::unshard) != 0;
  });
  CHECK(wrong == 0);
}

}  // namespace gpu_worlds_test
