// Communication over NCCL within CUDA graphs: ranks are threads, each with an emulated GPU, and an NCCL made for tests.
#include <catch2/catch.hpp>

#include <barrier>
#include <numeric>

#include "comm/gpu/gpu_world.h"
#include "kernels/kernels.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/fake_nccl.h"
#include "tests/gpu/emulation/kernels.h"

namespace nccl_graph_test {

using namespace zs;
using namespace zs::test;
using Catch::Contains;

namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kPart = 5;  // elements

struct Machine {
  explicit Machine(std::uint64_t seed = 1)
      : driver({.gpus = kRanks, .seed = seed, .kernels = emulated_kernels()}), nccl(driver, seed) {}
  EmulatedDriver driver;
  FakeNccl nccl;

  using Body = std::function<void(World& world, CudaDevice& device)>;
  void run(const Body& body, double sync_timeout_s = 20, bool checks_order = true) {
    run_local_world(kRanks, {20}, [&](World& base) {
      DeviceOptions options = patient();
      options.gpu = base.rank();
      options.sync_timeout_s = sync_timeout_s;
      CudaDevice device(options, driver.table());
      body(*make_nccl_world(base, device,
                            {.timeout_s = 20,
                             .arithmetic = GpuArithmetic::of(cuda_kernels()),
                             .checks_order = checks_order,
                             .table = nccl.table()}),
           device);
    });
  }
};

/// Of a GPU whose memory the host can touch while nothing runs there.
struct Array {
  Array(CudaDevice& device, std::int64_t elems)
      : memory(device.pool().acquire(elems * size_of(DType::f32), device.stream(StreamRole::compute), "test")),
        buffer(memory.buffer(DType::f32, elems)) {}
  std::vector<float> values() const { return {buffer.as<float>(), buffer.as<float>() + buffer.elems}; }
  Memory memory;
  Buffer buffer;
};

/// What every rank throws, with its code.
std::vector<std::string> told_by_all(Machine& machine, const Machine::Body& body) {
  std::vector<std::string> told(kRanks, "nothing was thrown");
  machine.run([&](World& world, CudaDevice& device) {
    std::string& own = told[static_cast<std::size_t>(world.rank())];
    try {
      body(world, device);
    } catch (const Error& error) {
      own = fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
    }
    world.agree(0, "");  // nobody leaves while others still say something
  });
  return told;
}

}  // namespace

TEST_CASE(
    "captured communication is done again by each replay, with the values of then, among what is not captured, on "
    "every seed") {
  Machine machine(GENERATE(range(1, 9)));
  std::vector<std::vector<float>> wrong(kRanks);
  machine.run([&](World& world, CudaDevice& device) {
    const auto gathers = world.communicator(), reduces = world.communicator();
    Stream &unshard = device.stream(StreamRole::unshard), &reduce = device.stream(StreamRole::reduce);
    const int rank = world.rank();
    Array full(device, kRanks * kPart), sum(device, kPart), turned(device, kRanks * kPart), told(device, kPart);
    const Buffer own = full.buffer.slice(rank * kPart, kPart);
    const auto fill = [&](float base) { std::fill_n(own.as<float>(), kPart, base + static_cast<float>(rank)); };
    const auto work = [&] {
      Event gathered;
      gathers->all_gather(unshard, "all", own, full.buffer);
      unshard.record(gathered);
      reduce.wait(gathered);
      reduces->reduce_scatter(reduce, "sum", full.buffer, sum.buffer, ReduceInto::overwrite);
      reduces->all_to_all(reduce, "turn", full.buffer, turned.buffer);
      reduces->broadcast(reduce, "tell", told.buffer, 1);
    };
    const auto check = [&](float base) {
      std::vector<float> expected_full, expected_turned;
      for (int r = 0; r < kRanks; ++r) {
        expected_full.insert(expected_full.end(), kPart, base + static_cast<float>(r));
        expected_turned.insert(expected_turned.end(), kPart, base + static_cast<float>(rank));
      }
      const std::vector<float> expected_sum(kPart, kRanks * (base + static_cast<float>(rank)));
      if (full.values() != expected_full || turned.values() != expected_turned || sum.values() != expected_sum)
        wrong[static_cast<std::size_t>(rank)].push_back(base);
    };
    fill(1);
    work();
    device.synchronize();
    check(1);
    fill(10);
    const auto graph = device.capture(work);
    if (full.values()[static_cast<std::size_t>((rank + 1) % kRanks * kPart)] ==
        10 + static_cast<float>((rank + 1) % kRanks))
      wrong[static_cast<std::size_t>(rank)].push_back(-1);  // it has run
    for (float base = 10; base < 40; base += 10) {
      fill(base);
      device.replay(*graph);
      reduces->barrier(reduce, "between");
      device.synchronize();
      check(base);
    }
    fill(50);
    work();
    device.synchronize();
    check(50);
  });
  CHECK(wrong == std::vector<std::vector<float>>(kRanks));
  CHECK(machine.driver.live_handles() == 0);
  CHECK(machine.nccl.live() == 0);
  CHECK(machine.nccl.held_too_long() == 0);
}

TEST_CASE("ranks that capture other operations are told which before any of them runs, and there is no graph") {
  Machine machine;
  const auto told = told_by_all(machine, [](World& world, CudaDevice& device) {
    const auto comm = world.communicator();
    const Array full(device, kRanks * kPart);
    device.capture([&] {
      const std::string unit = world.rank() == 2 ? "blocks.4" : "blocks.3";
      comm->all_gather(device.stream(StreamRole::unshard), unit, full.buffer.slice(world.rank() * kPart, kPart),
                       full.buffer);
    });
  });
  for (const std::string& message : told)
    CHECK_THAT(message, Contains("72: the ranks disagree: rank 0 all_gather(blocks.3)") &&
                            Contains("rank 2 all_gather(blocks.4)"));
  CHECK(machine.driver.calls("cuGraphInstantiate") == 0);
  CHECK(machine.driver.live_handles() == 0);
  CHECK(machine.nccl.held_too_long() == 0);
}

TEST_CASE("within captured work no communicator is split, and no counts are agreed on") {
  Machine machine;
  const bool splits = GENERATE(true, false);
  const auto told = told_by_all(machine, [&](World& world, CudaDevice& device) {
    const auto comm = world.communicator();
    Stream& stream = device.stream(StreamRole::reduce);
    const Array in(device, kRanks * kPart), out(device, kRanks * kPart);
    const std::vector<std::int64_t> counts(kRanks, kPart);
    device.capture([&] {
      if (!splits) return comm->all_to_all_v(stream, "experts", {in.buffer, counts}, {out.buffer, counts});
      comm->all_to_all(stream, "experts", in.buffer, out.buffer);
      comm->split(0, world.rank());
    });
  });
  for (const std::string& message : told) {
    CHECK_THAT(message, Contains(splits ? "64: a communicator is split while its stream is captured"
                                        : "64: all_to_all_v(experts) is captured"));
  }
}

TEST_CASE("what fails on one stream's communicator is thrown where another stream waits for that one") {
  Machine machine;
  std::barrier<> is_launched(kRanks);
  std::string told;
  machine.run(
      [&](World& world, CudaDevice& device) {
        const auto comm = world.communicator();
        if (world.rank() == 0) {
          Event done;
          comm->barrier(device.stream(StreamRole::unshard), "blocks.3");  // to which nobody else comes
          device.stream(StreamRole::unshard).record(done);
          device.stream(StreamRole::compute).wait(done);
        }
        is_launched.arrive_and_wait();
        if (world.rank() == 1) machine.nccl.fail_behind(kRanks, 0, nccl::kRemoteError);
        is_launched.arrive_and_wait();
        if (world.rank() != 0) return;
        try {
          device.stream(StreamRole::compute).synchronize();
        } catch (const Error& error) {
          told = error.what();
        }
      },
      2, false);
  CHECK_THAT(told, Contains("ncclCommGetAsyncError: NCCL error 6"));
}

TEST_CASE("in the NCCL for tests a replayed operation does not meet one that is enqueued, nor one of another capture") {
  Machine machine;
  const bool enqueues = GENERATE(true, false);
  const auto run = [&] {
    machine.run(
        [&](World& world, CudaDevice& device) {
          const auto comm = world.communicator();
          const auto work = [&] { comm->barrier(device.stream(StreamRole::reduce), "unit"); };
          work();
          const auto first = device.capture(work), second = device.capture(work);
          if (enqueues && world.rank() == 0)
            work();
          else
            device.replay(world.rank() == 0 ? *second : *first);
          device.synchronize();
        },
        0.5, false);
  };
  CHECK_THROWS_WITH(run(), Contains("did not finish within 0.5 s"));
}

}  // namespace nccl_graph_test
