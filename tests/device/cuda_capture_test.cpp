#include "runtime/device/cuda_capture.h"

#include <catch2/catch.hpp>

#include <thread>

#include "runtime/base/random.h"
#include "tests/device/test_devices.h"
#include "tests/message_of.h"

namespace cuda_capture_test {

using namespace zs;
using namespace zs::test;

namespace {

/// Work that lets the emulated GPU run `body` when it comes to it.
Work on_gpu(EmulatedDriver& driver, std::function<void()> body) {
  return [&driver, body = std::move(body)](ExecContext& exec) { driver.launch(exec.native_stream(), body); };
}

struct Gpu {
  explicit Gpu(std::uint64_t seed = 1) : driver({.seed = seed}) {
    device.stream(StreamRole::compute).enqueue({"a step before"}, [](ExecContext&) {});  // takes the stream's workspace
    device.synchronize();
  }
  EmulatedDriver driver;
  CudaDevice device{patient(), driver.table()};

  /// `steps` ops on streams at random, each behind the one before by events alone, from `value` == 0 on.
  void count(std::int64_t& value, int steps, bool forgets_an_event = false) {
    const CounterRng rng(5, 0);
    Event last;
    for (int step = 0; step < steps; ++step) {
      Stream& stream =
          device.stream(static_cast<StreamRole>(rng.bits(static_cast<std::uint64_t>(step)) % kStreamRoles));
      if (!forgets_an_event || step != steps / 2) stream.wait(last);
      stream.enqueue({"count"}, on_gpu(driver, [&value, step] { value = value == step ? step + 1 : -1000; }));
      stream.record(last);
    }
  }
};

constexpr int kSteps = 40;

}  // namespace

TEST_CASE("captured work is not done, and each replay does it once, in the order of its events, on every seed") {
  Gpu gpu(GENERATE(range(1, 11)));
  std::int64_t value = 0, after = 0;
  const auto graph = gpu.device.capture([&] { gpu.count(value, kSteps); });
  gpu.device.synchronize();
  CHECK(value == 0);
  for (int replay = 0; replay < 3; ++replay) {
    value = 0;
    gpu.device.replay(*graph);
    // Every stream goes on behind it.
    gpu.device.stream(StreamRole::finish).enqueue({"look"}, on_gpu(gpu.driver, [&] { after = value; }));
    CHECK(value != kSteps);
    gpu.device.synchronize();
    CHECK(value == kSteps);
    CHECK(after == kSteps);
  }
}

TEST_CASE("an event that captured work lacks shows on some seed") {
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Gpu gpu(seed);
    std::int64_t value = 0;
    const auto graph = gpu.device.capture([&] { gpu.count(value, kSteps, true); });
    gpu.device.replay(*graph);
    gpu.device.synchronize();
    wrong += value != kSteps;
  }
  CHECK(wrong > 0);
}

TEST_CASE("a replay comes behind what all streams were given before") {
  Gpu gpu(GENERATE(range(1, 11)));
  std::int64_t written = 0, seen = 0;
  const auto graph = gpu.device.capture(
      [&] { gpu.device.stream(StreamRole::compute).enqueue({"read"}, on_gpu(gpu.driver, [&] { seen = written; })); });
  for (std::int64_t number = 1; number <= 4; ++number) {
    gpu.device.stream(StreamRole::unshard).enqueue({"write"}, on_gpu(gpu.driver, [&written, number] {
                                                     written = number;
                                                   }));
    gpu.device.replay(*graph);
    gpu.device.synchronize();
    CHECK(seen == number);
  }
}

TEST_CASE("events go across the border of a capture in both directions, and order nothing there") {
  Gpu gpu(GENERATE(range(1, 6)));
  Stream &compute = gpu.device.stream(StreamRole::compute), &unshard = gpu.device.stream(StreamRole::unshard);
  std::vector<int> order;
  const auto note = [&](int number) { return on_gpu(gpu.driver, [&order, number] { order.push_back(number); }); };
  Event before, within;
  compute.enqueue({"before"}, note(1));
  compute.record(before);
  const auto graph = gpu.device.capture([&] {
    unshard.wait(before);
    unshard.enqueue({"within"}, note(2));
    unshard.record(within);
  });
  gpu.device.replay(*graph);
  compute.wait(within);
  compute.enqueue({"after"}, note(3));
  gpu.device.synchronize();
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("what a replay would not repeat is refused by the name of its op, and the device is usable afterwards") {
  Gpu gpu;
  Stream& compute = gpu.device.stream(StreamRole::compute);
  const Memory memory = gpu.device.pool().acquire(64, compute, "activation");
  const auto work = [&] { compute.enqueue({"first"}, on_gpu(gpu.driver, [] {})); };
  const auto message = [&](const std::function<void()>& enqueue) {
    return message_of([&] {
      gpu.device.capture([&] {
        work();
        enqueue();
        work();
      });
    });
  };
  const std::int32_t token = 7;
  CHECK_THAT(message([&] {
               compute.enqueue({"tokens"}, [&](ExecContext& exec) {
                 exec.uploads().upload(static_cast<CUstream_st*>(exec.native_stream()), memory.buffer(DType::i32, 1),
                                       &token);
               });
             }),
             Catch::Contains("an upload within captured work") && Catch::Contains("last enqueued: tokens"));
  CHECK_THAT(message([&] { compute.synchronize(); }),
             Catch::Contains("the host waits for stream 'compute' while its work is captured") &&
                 Catch::Contains("last enqueued: first"));
  CHECK_THAT(message([&] { compute.enqueue({"grow"}, [&](ExecContext&) { gpu.device.allocator().allocate(64); }); }),
             Catch::Contains("cuMemAlloc: CUDA error 900") && Catch::Contains("last enqueued: grow"));
  const auto throw_it = [] { throw std::runtime_error("as planned"); };
  const auto work_throws = [&] { compute.enqueue({"bad"}, [&](ExecContext&) { throw_it(); }); };
  CHECK_THROWS_WITH(gpu.device.capture(work_throws), "as planned");
  CHECK_THROWS_WITH(gpu.device.capture(throw_it), "as planned");
  std::int64_t value = 0;
  gpu.count(value, kSteps);
  CHECK_NOTHROW(gpu.device.synchronize());
  CHECK(value == kSteps);
}

TEST_CASE("a stream that captures cannot be asked how far it is by any thread, but the device can") {
  Gpu gpu;
  Stream& compute = gpu.device.stream(StreamRole::compute);
  const bool asks_stream = GENERATE(true, false);
  int status = 0;
  const auto ask = [&](ExecContext& exec) {
    std::thread watcher([&] {
      gpu.device.context().make_current();
      if (asks_stream) status = gpu.driver.table()->stream_query(static_cast<CUstream_st*>(exec.native_stream()));
      gpu.device.completed();
      gpu.device.activity();
    });
    watcher.join();
  };
  const auto capture = [&] { gpu.device.capture([&] { compute.enqueue({"ask"}, ask); }); };
  if (asks_stream) {
    CHECK_THROWS_WITH(capture(), Catch::Contains("CUDA error 901"));
    CHECK(status == 900);
  } else {
    CHECK_NOTHROW(capture());
  }
}

TEST_CASE("a driver that fails to capture says which call, and leaves the device usable") {
  Gpu gpu;
  const std::string call = GENERATE("cuStreamBeginCapture", "cuGraphInstantiate", "cuGraphLaunch");
  std::int64_t value = 0;
  const auto step = [&] {
    const auto graph = gpu.device.capture([&] { gpu.count(value, 3); });
    gpu.device.replay(*graph);
    gpu.device.synchronize();
  };
  gpu.driver.fail(call, 999);
  CHECK_THROWS_WITH(step(), Catch::Contains(call + ": CUDA error 999"));
  CHECK_NOTHROW(step());
  CHECK(value == 3);
}

TEST_CASE("graphs are given back, and replays make nothing new") {
  EmulatedDriver driver;
  {
    CudaDevice device(patient(), driver.table());
    int runs = 0;
    const auto graph = device.capture(
        [&] { device.stream(StreamRole::reduce).enqueue({"count"}, on_gpu(driver, [&runs] { ++runs; })); });
    device.replay(*graph);
    device.synchronize();
    const int events = driver.calls("cuEventCreate"), memory = driver.calls("cuMemAlloc");
    for (int i = 0; i < 10; ++i) {
      device.replay(*graph);
      device.synchronize();
    }
    CHECK(runs == 11);
    CHECK(driver.calls("cuEventCreate") == events);
    CHECK(driver.calls("cuMemAlloc") == memory);
  }
  CHECK(driver.live_handles() == 0);
}

}  // namespace cuda_capture_test
