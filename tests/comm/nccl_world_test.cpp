// NCCL between GPUs: ranks are threads, each with an emulated GPU, over the local transport between their hosts.
#include <catch2/catch.hpp>
#include <latch>

#include "tests/comm/arrays.h"
#include "tests/comm/gpu_worlds.h"
#include "tests/message_of.h"

namespace nccl_world_test {

using namespace zs;
using namespace zs::test;
using Catch::Contains;

namespace {

/// `enqueue` on every rank with 1000 f32 there, then what each rank's stream says.
std::vector<std::string> messages(GpuWorlds& gpus, int ranks, const WorldOptions& options,
                                  const std::function<void(Communicator&, Stream&, Buffer)>& enqueue,
                                  bool checks_order = true) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  const auto body = [&](World& world, CudaDevice& device) {
    const auto comm = world.communicator();
    Array<float> data(*comm, 1000);
    data.fill([](std::int64_t) { return 1.0f; });
    Stream& stream = device.stream(StreamRole::compute);
    enqueue(*comm, stream, data.buffer());
    said[static_cast<std::size_t>(world.rank())] = coded_message_of([&] { stream.synchronize(); });
  };
  REQUIRE_NOTHROW(gpus.run(ranks, true, options, body, checks_order));
  CHECK(gpus.driver.live_handles() == 0);
  CHECK(gpus.nccl.live() == 0);
  return said;
}

}  // namespace

TEST_CASE("the nccl transport does what every transport does but for the order of sums and NaNs") {
  run_cases(operation_cases(), GENERATE(1, 2, 3, 4), true,
            kHostMemory | kAnyOrder | kWrittenOrder | kNansWin | kAnyAccumulator);
}

TEST_CASE("nothing is recorded before NCCL has enqueued, on every seed") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 11)));
  constexpr int kRanks = 3, kRounds = 20;
  GpuWorlds gpus(kRanks, seed);
  std::atomic<int> wrong{0};
  gpus.run(kRanks, true, {60}, [&](World& world, CudaDevice& device) {
    const auto comm = world.communicator();
    Stream &gathers = device.stream(StreamRole::unshard), &reads = device.stream(StreamRole::compute);
    Array<float> data(*comm, 3 * 100);
    std::atomic<int> here{0};
    Event gathered, read;
    for (int round = 0; round < kRounds; ++round) {
      gathers.wait(read);
      gathers.enqueue({"fill"}, [&, round](ExecContext& exec) {
        gpus.driver.launch(exec.native_stream(), [&, round] {
          data.fill([&](std::int64_t i) { return i / 100 == comm->rank() ? round : -1.0f; });
        });
      });
      comm->all_gather(gathers, "unit", data.buffer().slice(comm->rank() * 100, 100), data.buffer());
      gathers.record(gathered);
      reads.wait(gathered);
      reads.enqueue({"read"}, [&, round](ExecContext& exec) {
        gpus.driver.launch(exec.native_stream(), [&, round] {
          for (std::int64_t i = 0; i < 300; ++i) here += data[i] != static_cast<float>(round);
        });
      });
      reads.record(read);
    }
    device.synchronize();
    wrong += here;
  });
  CHECK(wrong == 0);
}

TEST_CASE("over NCCL neither u8 nor u16 is reduced, and a plan for it says so too") {
  using Catch::Contains;
  const auto refuses = [](Communicator& comm, Stream& stream, DType dtype) {
    const Buffer data = Buffer{comm.arena().allocate(64), 64 / size_of(dtype), dtype, comm.arena().device()};
    const std::string says = fmt::format("adds up no {}", name_of(dtype));
    CHECK_THROWS_WITH(comm.all_reduce(stream, "unit", data, ReduceOp::max), Contains(says));
    CHECK_THROWS_WITH(
        comm.reduce_scatter(stream, "unit", data, data.slice(0, data.elems / comm.size()), ReduceInto::overwrite),
        Contains(says));
    comm.arena().deallocate(data.data, 64);
  };
  GpuWorlds gpus(1);
  gpus.run(1, true, {20}, [&](World& world, CudaDevice& device) {
    const auto comm = world.communicator();
    for (const DType dtype : {DType::u8, DType::u16}) refuses(*comm, device.stream(StreamRole::compute), dtype);
  });
  const auto planned = make_meta_world(0, 2, {Transport::nccl});
  const auto comm = planned->communicator();
  const auto device = Device::create(DeviceKind::meta, {});
  for (const DType dtype : {DType::u8, DType::u16}) refuses(*comm, device->stream(StreamRole::compute), dtype);
}

TEST_CASE("sums into f32 and onto accumulators are those of the contract where NCCL has none of its own") {
  constexpr int kRanks = 3;
  GpuWorlds gpus(kRanks);
  const auto body = [](World& world, CudaDevice& device) {
    const auto comm = world.communicator();
    Stream& stream = device.stream(StreamRole::reduce);
    const std::int64_t n = 1003;
    const auto value = [&](int r, std::int64_t i) {
      return static_cast<float>(BFloat16(real(r, comm->rank() * n + i)));
    };
    Array<BFloat16> full(*comm, n * kRanks);
    Array<float> shard(*comm, n), accumulator(*comm, n);
    full.fill([&](std::int64_t i) { return BFloat16(real(comm->rank(), i)); });
    accumulator.fill([](std::int64_t i) { return real(99, i); });
    comm->reduce_scatter(stream, "unit", full.buffer(), shard.buffer(), ReduceInto::overwrite);
    comm->reduce_scatter(stream, "unit", full.buffer(), accumulator.buffer(), ReduceInto::accumulate);
    stream.synchronize();
    shard.expect_is("sum into f32", comm->rank(),
                    [&](std::int64_t i) { return value(0, i) + value(1, i) + value(2, i); });
    accumulator.expect_is("sum onto f32", comm->rank(),
                          [&](std::int64_t i) { return real(99, i) + value(0, i) + value(1, i) + value(2, i); });
  };
  REQUIRE_NOTHROW(gpus.run(kRanks, true, {60}, body));
}

TEST_CASE("ranks that disagree over NCCL are named, whether it would have mixed their data or hung") {
  const bool would_hang = GENERATE(false, true);
  GpuWorlds gpus(3);
  const auto said = messages(gpus, 3, {20}, [&](Communicator& comm, Stream& stream, Buffer data) {
    const bool is_odd = comm.rank() == 2;
    comm.all_reduce(stream, is_odd ? "blocks.4" : "blocks.3", data.slice(0, is_odd && would_hang ? 10 : 100),
                    ReduceOp::sum);
  });
  for (const std::string& message : said) {
    CHECK_THAT(message, Contains("72: the ranks disagree: rank 0 all_reduce(blocks.3) sum f32 n=100, rank 2 "
                                 "all_reduce(blocks.4) sum f32 n=") ||
                            Contains("because another rank failed"));
  }
  CHECK_THAT(said[0] + said[1] + said[2], Contains("72: "));
}

TEST_CASE("a rank that launches less over NCCL is named") {
  GpuWorlds gpus(3);
  const auto said = messages(gpus, 3, {1}, [&](Communicator& comm, Stream& stream, Buffer data) {
    if (comm.rank() != 1) comm.all_reduce(stream, "blocks.3", data, ReduceOp::sum);
  });
  CHECK(said[1] == "");
  for (const int r : {0, 2}) {
    CHECK_THAT(said[static_cast<std::size_t>(r)],
               Contains("69: all_reduce(blocks.3) sum: all_gather(order) waited 1 s for rank 1 (rank ") ||
                   Contains("because another rank failed"));
  }
}

TEST_CASE("a communicator of NCCL that has failed says at every later launch what has failed") {
  GpuWorlds gpus(2);
  const auto said = messages(gpus, 2, {20}, [&](Communicator& comm, Stream& stream, Buffer data) {
    comm.all_reduce(stream, comm.rank() == 0 ? "this" : "that", data, ReduceOp::sum);
    if (coded_message_of([&] { stream.synchronize(); }) == "") return;
    comm.barrier(stream, "later");
  });
  for (const std::string& message : said)
    CHECK_THAT(message,
               Contains("72: the ranks disagree: rank 0 all_reduce(this)") || Contains("because another rank failed"));
}

TEST_CASE("of ranks over NCCL the one is heard that has failed, not those that waited for it") {
  GpuWorlds gpus(2);
  const auto body = [](World& world, CudaDevice& device) {
    const auto comm = world.communicator();
    Stream& stream = device.stream(StreamRole::compute);
    if (world.rank() == 1) throw Error(ExitCode::peer_lost, "rank 1 has its own reason");
    comm->barrier(stream, "blocks.3");
    stream.synchronize();
  };
  REQUIRE_THROWS_WITH(gpus.run(2, true, {20}, body), Contains("its own reason"));
}

TEST_CASE("a rank that throws does not wait for its peers to end NCCL with it") {
  GpuWorlds gpus(1);
  const auto body = [](World& world, CudaDevice&) {
    const auto comm = world.communicator();
    throw Error(ExitCode::internal, "a reason");
  };
  REQUIRE_THROWS_WITH(gpus.run(1, true, {20}, body), Contains("a reason"));
  CHECK(gpus.nccl.calls("ncclCommFinalize") == 0);
  CHECK(gpus.nccl.live() == 0);
}

TEST_CASE("a call that NCCL refuses is an error that names call, operation, rank and GPU") {
  GpuWorlds gpus(1);
  gpus.nccl.fail("ncclReduceScatter", 3);
  const auto said = messages(gpus, 1, {1}, [&](Communicator& comm, Stream& stream, Buffer data) {
    comm.reduce_scatter(stream, "blocks.3", data, data, ReduceInto::overwrite);
  });
  CHECK_THAT(
      said[0],
      Contains("70: op reduce_scatter:blocks.3: ncclReduceScatter: NCCL error 3, a made-up error (nothing is known) "
               "(reduce_scatter(blocks.3) into "
               "f32, rank 0 of 1, GPU 0 (Emulated))") &&
          Contains("NCCL_DEBUG=INFO says more"));
}

TEST_CASE("an error behind NCCL's calls ends the wait for the GPU") {
  GpuWorlds gpus(2);
  std::latch is_launched(2);  // before, it would be the launch's error
  const auto said = messages(
      gpus, 2, {20},
      [&](Communicator& comm, Stream& stream, Buffer data) {
        if (comm.rank() == 0) comm.all_reduce(stream, "blocks.3", data, ReduceOp::sum);
        is_launched.arrive_and_wait();
        if (comm.rank() == 1) gpus.nccl.fail_behind(2, 0, nccl::kRemoteError);
      },
      false);
  CHECK_THAT(said[0], Contains("69: ncclCommGetAsyncError: NCCL error 6"));
  CHECK(said[1] == "");
}

TEST_CASE("without its order check a rank that hangs in NCCL ends with the device's timeout") {
  // What the check is there for.
  EmulatedDriver driver({.gpus = 2});
  FakeNccl nccl(driver, 1);
  std::vector<std::string> said(2);
  run_local_world(2, {1}, [&](World& base) {
    DeviceOptions gpu;
    gpu.gpu = base.rank();
    gpu.sync_timeout_s = 0.2;
    CudaDevice device(gpu, driver.table());
    const auto world = make_nccl_world(base, device, {.timeout_s = 1, .checks_order = false, .table = nccl.table()});
    const auto comm = world->communicator();
    Stream& stream = device.stream(StreamRole::reduce);
    if (base.rank() == 0) comm->barrier(stream, "blocks.3");
    said[static_cast<std::size_t>(base.rank())] = coded_message_of([&] { stream.synchronize(); });
    base.agree(0, "");
  });
  CHECK_THAT(said[0], Contains("69: stream 'reduce' did not finish within 0.2 s"));
  CHECK(said[1] == "");
}

TEST_CASE("a reduction that NCCL has not needs the arithmetic to be given") {
  GpuWorlds gpus(1);
  gpus.run(1, false, {1}, [&](World&, CudaDevice& device) {
    const auto single = make_single_world({});
    const auto world = make_nccl_world(*single, device, {.timeout_s = 1, .table = gpus.nccl.table()});
    const auto comm = world->communicator();
    const Array<float> data(*comm, 8), more(*comm, 8);
    Stream& stream = device.stream(StreamRole::reduce);
    comm->reduce_scatter(stream, "unit", data.buffer(), more.buffer(), ReduceInto::accumulate);
    CHECK_THAT(coded_message_of([&] { stream.synchronize(); }), Contains("without NcclOptions::arithmetic"));
    const Array<double> doubles(*comm, 8), sum(*comm, 8);
    CHECK_THROWS_WITH(comm->reduce_scatter(stream, "unit", doubles.buffer(), sum.buffer(), ReduceInto::accumulate),
                      Contains("f64 to nothing"));
  });
}

}  // namespace nccl_world_test
