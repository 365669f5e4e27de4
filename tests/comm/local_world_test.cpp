#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <thread>

#include "comm/health/watchdog.h"
#include "comm/world.h"
#include "runtime/device/device.h"

namespace local_world_test {

using namespace zs;

namespace {

/// Runs `body` on `ranks` ranks and returns what run_local_world throws, as text.
std::string failure(int ranks, const std::function<void(World&)>& body, const WorldOptions& options = {}) {
  try {
    run_local_world(ranks, options, body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void barrier(World& world) {
  const auto comm = world.communicator();
  const auto device = Device::create(DeviceKind::cpu, {});
  comm->barrier(device->stream(StreamRole::compute), "unit");
  device->synchronize();
}

}  // namespace

TEST_CASE("an abort wakes ranks that wait on streams and on hosts") {
  std::atomic<int> woken{0};
  run_local_world(4, {}, [&](World& world) {
    const auto comm = world.communicator();
    if (world.rank() == 0) return world.abort(69);
    try {
      if (world.rank() == 1) {
        world.agree(0, "");
      } else {
        const auto device = Device::create(DeviceKind::cpu, {});
        comm->barrier(device->stream(StreamRole::compute), "unit");
        device->synchronize();
      }
    } catch (const GroupEnded& error) {
      woken += error.code() == ExitCode::peer_lost ? 1 : 0;
    }
  });
  CHECK(woken == 3);
}

TEST_CASE("a window that the first rank cannot have is refused on every rank") {
  std::atomic<int> refused{0};
  run_local_world(3, {.timeout_s = 20}, [&](World& world) {
    const auto comm = world.communicator();
    try {
      comm->shared_window(std::int64_t{1} << 60);
    } catch (const Error& error) {
      refused += error.code() == ExitCode::out_of_memory ? 1 : 0;
    }
    comm->shared_window(64);
  });
  CHECK(refused == 3);
}

TEST_CASE("a rank that throws wakes the others, and its exception is the one that comes out") {
  const int thrower = GENERATE(0, 1, 3);
  CHECK(failure(4, [&](World& world) {
          if (world.rank() == thrower) throw std::runtime_error("the cause");
          barrier(world);
        }) == "the cause");
}

TEST_CASE("of two causes the lower rank's comes out") {
  CHECK(failure(4, [](World& world) {
          if (world.rank() >= 2) throw std::runtime_error("cause " + std::to_string(world.rank()));
          barrier(world);
        }) == "cause 2");
}

TEST_CASE("a cause comes out before the lost peer that it explains") {
  CHECK(failure(2,
                [](World& world) {
                  const auto comm = world.communicator();
                  if (world.rank() == 1) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(3000));
                    throw std::runtime_error("the cause");
                  }
                  const auto device = Device::create(DeviceKind::cpu, {});
                  comm->barrier(device->stream(StreamRole::compute), "unit");
                  device->synchronize();
                },
                {1.0}) == "the cause");  // the ranks' threads meet in less, on a loaded machine too
}

TEST_CASE("a cause comes out under a watchdog, too, however long ranks take to unwind") {
  struct SlowEnd {  // as of much memory
    ~SlowEnd() { std::this_thread::sleep_for(std::chrono::milliseconds(500)); }
  };
  WorldOptions options{.timeout_s = 60};
  options.watch.step_s = 60;
  CHECK(failure(
            4,
            [](World& world) {
              world.watchdog()->enter(Phase::step, 1);
              const auto comm = world.communicator();
              const auto device = Device::create(DeviceKind::cpu, {});
              if (world.rank() == 1) {
                std::this_thread::sleep_for(
                    std::chrono::milliseconds(1500));  // longer than who has left may be waited for
                throw std::runtime_error("the cause");
              }
              const SlowEnd end;
              const StatusScope observed(world.watchdog(), *device);
              comm->barrier(device->stream(StreamRole::compute), "unit");
              device->synchronize();
            },
            options) == "the cause");
}

TEST_CASE("a communicator that has failed refuses further work") {
  REQUIRE_NOTHROW(run_local_world(2, {}, [](World& world) {
    const auto comm = world.communicator();
    const auto device = Device::create(DeviceKind::cpu, {});
    Stream& stream = device->stream(StreamRole::compute);
    const auto fails_with = [&](const char* unit) {
      comm->barrier(stream, unit);
      try {
        stream.synchronize();
      } catch (const Error& error) {
        return error.code();
      }
      return ExitCode::ok;
    };
    const ExitCode first = fails_with(world.rank() == 0 ? "this" : "that"), second = fails_with("unit");
    if (first != ExitCode::ranks_disagree || second != ExitCode::peer_lost)
      throw std::runtime_error("the wrong errors");
  }));
}

TEST_CASE("2A-12: the collectives of a null world move nothing, wait for nobody and are counted") {
  REQUIRE_NOTHROW(run_local_world(2, {}, [](World& real) {
    const auto world = make_null_world(real);
    const auto comm = world->communicator();
    if (comm->size() != 2 || world->transport() != "null" || world->agree(real.rank(), "").rank != 1)
      throw std::runtime_error("not the ranks");
    if (real.rank() == 1) return;  // rank 0 is alone
    const auto device = Device::create(DeviceKind::cpu, {});
    Stream& stream = device->stream(StreamRole::compute);
    std::array<float, 4> data{1, 2, 3, 4}, before = data;
    const Buffer full{data.data(), 4, DType::f32, DeviceKind::cpu};
    comm->all_gather(stream, "u", full.slice(0, 2), full);
    comm->reduce_scatter(stream, "u", full, full.slice(0, 2), ReduceInto::overwrite);
    comm->all_reduce(stream, "u", full, ReduceOp::sum);
    comm->broadcast(stream, "u", full, 1);
    comm->all_to_all(stream, "u", full.slice(0, 2), full.slice(2, 2));
    const std::array<std::int64_t, 2> counts{0, 2};
    comm->all_to_all_v(stream, "u", {full.slice(0, 2), counts}, {full.slice(2, 2), counts});
    comm->barrier(stream, "u");
    stream.synchronize();
    if (data != before) throw std::runtime_error("something was written");
    if (comm->traffic().sent_bytes() != 8 + 8 + 16 + 4 + 8) throw std::runtime_error("not what would have been sent");
  }));
}

TEST_CASE("a communicator checks its arguments and says where") {
  const auto world = make_meta_world(1, 4);
  const auto comm = world->communicator();
  const auto device = Device::create(DeviceKind::meta, {});
  Stream& stream = device->stream(StreamRole::compute);
  const auto buffer = [&](std::int64_t elems, DType dtype = DType::f32) {
    return Buffer{comm->arena().allocate(elems * size_of(dtype)), elems, dtype, DeviceKind::meta};
  };
  const auto full = buffer(40);
  using Catch::Contains;
  CHECK_THROWS_WITH(comm->all_gather(stream, "blocks.3", buffer(9), full),
                    Contains("all_gather(blocks.3) on rank 1 of 4") && Contains("40 elements, expected 36"));
  CHECK_THROWS_WITH(comm->all_gather(stream, "u", buffer(10, DType::bf16), full), Contains("shard is bf16"));
  CHECK_THROWS_WITH(comm->all_gather(stream, "u", full.slice(0, 10), full), Contains("overlaps"));
  CHECK_NOTHROW(comm->all_gather(stream, "u", full.slice(10, 10), full));
  CHECK_THROWS_WITH(comm->reduce_scatter(stream, "u", full, full.slice(10, 10), ReduceInto::accumulate),
                    Contains("overlaps"));
  CHECK_NOTHROW(comm->reduce_scatter(stream, "u", full, full.slice(10, 10), ReduceInto::overwrite));
  CHECK_THROWS_WITH(comm->reduce_scatter(stream, "u", full, buffer(10, DType::bf16), ReduceInto::overwrite),
                    Contains("f32 into bf16"));
  CHECK_THROWS_WITH(comm->reduce_scatter(stream, "u", buffer(40, DType::f64), buffer(10), ReduceInto::overwrite),
                    Contains("f64 into f32"));
  CHECK_THROWS_WITH(comm->reduce_scatter(stream, "u", buffer(40, DType::u8), buffer(10), ReduceInto::overwrite),
                    Contains("u8 into f32"));
  CHECK_THROWS_WITH(comm->broadcast(stream, "u", full, 4), Contains("root 4"));
  CHECK_THROWS_WITH(comm->all_to_all(stream, "u", full.slice(0, 20), full.slice(4, 20)),
                    Contains("overlap, but are not the same"));
  CHECK_NOTHROW(comm->all_to_all(stream, "u", full, full));
  CHECK_THROWS_WITH(comm->all_to_all(stream, "u", buffer(6), buffer(6)), Contains("multiples of 4"));
  const std::array<std::int64_t, 4> counts{1, 0, 2, 3}, negative{7, -1, 0, 0};
  const auto parts = [&](const RankParts& in, const RankParts& out) { comm->all_to_all_v(stream, "u", in, out); };
  CHECK_THROWS_WITH(parts({buffer(6), std::span(counts).first(3)}, {buffer(6), counts}),
                    Contains("in has 3 counts, expected 4"));
  CHECK_THROWS_WITH(parts({buffer(6), counts}, {buffer(7), counts}), Contains("out has 7 elements, its parts 6"));
  CHECK_THROWS_WITH(parts({buffer(6), negative}, {buffer(6), counts}), Contains("in has a part of -1 elements"));
  CHECK_THROWS_WITH(parts({buffer(6), counts}, {buffer(6, DType::i32), counts}), Contains("in is f32"));
  CHECK_THROWS_WITH(parts({full.slice(0, 6), counts}, {full.slice(5, 6), counts}), Contains("overlap"));
  CHECK_NOTHROW(parts({full.slice(0, 6), counts}, {full.slice(6, 6), counts}));
  CHECK_NOTHROW(parts({full.slice(0, 6), counts}, {full.slice(0, 6), counts}));
}

TEST_CASE("operations declare what they read and write") {
  const auto world = make_meta_world(1, 4);
  const auto comm = world->communicator();
  const auto device = Device::create(DeviceKind::meta, {});
  Stream& stream = device->stream(StreamRole::unshard);
  const Buffer full{comm->arena().allocate(160), 40, DType::f32, DeviceKind::meta};
  const Buffer shard{comm->arena().allocate(40), 10, DType::f32, DeviceKind::meta}, own = full.slice(10, 10);
  device->trace().start();
  comm->all_gather(stream, "u", shard, full);
  comm->all_gather(stream, "u", own, full);
  comm->reduce_scatter(stream, "u", full, shard, ReduceInto::overwrite);
  comm->reduce_scatter(stream, "u", full, shard, ReduceInto::accumulate);
  comm->all_reduce(stream, "u", shard, ReduceOp::max);
  comm->broadcast(stream, "u", shard, 0);
  comm->broadcast(stream, "u", shard, 1);
  comm->all_to_all(stream, "u", full.slice(0, 20), full.slice(20, 20));
  const std::array<std::int64_t, 4> counts{20, 0, 0, 0};
  comm->all_to_all_v(stream, "u", {full.slice(0, 20), counts}, {full.slice(20, 20), counts});
  comm->barrier(stream, "u");
  const auto shown = [&](const std::vector<Buffer>& buffers) {
    std::string text;
    for (const Buffer& b : buffers) {
      text += b.data == shard.data                ? "shard "
              : b.data == own.data                ? "own "
              : b.data == full.slice(20, 20).data ? "second "
              : b.elems == 20                     ? "first "
              : b.data == full.data               ? "full "
                                                  : "scratch ";
    }
    return text;
  };
  std::string ops;
  for (const TraceEntry& entry : device->trace().entries()) {
    ops += fmt::format("{} {}-> {}\n", entry.op.name, shown(entry.op.reads), shown(entry.op.writes));
  }
  CHECK(ops ==
        "all_gather:u shard -> full \n"
        "all_gather:u own -> full \n"
        "reduce_scatter:u full -> shard \n"
        "reduce_scatter:u full shard -> shard \n"
        "all_reduce:u shard -> shard \n"
        "broadcast:u -> shard \n"
        "broadcast:u shard -> \n"
        "all_to_all:u first -> second \n"
        "scratch -> scratch \n"
        "all_to_all_v:u first -> second scratch \n"
        "barrier:u -> \n");
}

}  // namespace local_world_test
