#include "runtime/device/cuda_stream.h"

#include <catch2/catch.hpp>
#include <thread>

#include "runtime/base/random.h"
#include "runtime/device/host_call.h"
#include "tests/device/test_devices.h"
#include "tests/message_of.h"

namespace cuda_stream_test {

using namespace zs;
using namespace zs::test;

namespace {

/// Work that lets the emulated GPU run `body` when it comes to it.
Work on_gpu(EmulatedDriver& driver, std::function<void()> body) {
  return [&driver, body = std::move(body)](ExecContext& exec) { driver.launch(exec.native_stream(), body); };
}

}  // namespace

TEST_CASE("work of a CUDA stream is enqueued at once and runs on the GPU later") {
  EmulatedDriver driver;
  CudaDevice device(patient(), driver.table());
  bool has_run = false;
  device.stream(StreamRole::compute).enqueue({"run"}, on_gpu(driver, [&] { has_run = true; }));
  CHECK_FALSE(has_run);
  device.synchronize();
  CHECK(has_run);
}

TEST_CASE("events alone order the streams of a GPU, on every seed") {
  EmulatedDriver driver({.seed = GENERATE(range(1, 21))});
  CudaDevice device(patient(), driver.table());
  const CounterRng rng(5, 0);
  std::int64_t value = 0;
  Event last;
  constexpr int kSteps = 300;
  for (int step = 0; step < kSteps; ++step) {
    Stream& stream = device.stream(static_cast<StreamRole>(rng.bits(static_cast<std::uint64_t>(step)) % kStreamRoles));
    stream.wait(last);
    stream.enqueue({"count"}, on_gpu(driver, [&value, step] { value = value == step ? step + 1 : -1; }));
    stream.record(last);
    if (step % 100 == 99) stream.synchronize();
  }
  device.synchronize();
  CHECK(value == kSteps);
}

TEST_CASE("without its event a later stream of the emulated GPU may run first") {
  // What the test above rests on: some seed finds a missing event.
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    EmulatedDriver driver({.seed = seed});
    CudaDevice device(patient(), driver.table());
    bool is_written = false, was_written = false;
    device.stream(StreamRole::unshard).enqueue({"write"}, on_gpu(driver, [&] { is_written = true; }));
    device.stream(StreamRole::compute).enqueue({"read"}, on_gpu(driver, [&] { was_written = is_written; }));
    device.synchronize();
    wrong += !was_written;
  }
  CHECK(wrong > 0);
  CHECK(wrong < 20);
}

TEST_CASE(
    "a wait on the GPU stays with the record at the time of the call, also when the driver's event serves again before "
    "it is over") {
  EmulatedDriver driver;
  DeviceOptions options;
  options.sync_timeout_s = 1;
  CudaDevice device(options, driver.table());
  Stream &a = device.stream(StreamRole::unshard), &b = device.stream(StreamRole::compute),
         &c = device.stream(StreamRole::reduce);
  void *const native_b = native(device, StreamRole::compute), *const native_c = native(device, StreamRole::reduce);
  driver.hold(native_b);
  driver.hold(native_c);
  bool has_run = false;
  {
    Event event;
    a.enqueue({"first"}, on_gpu(driver, [] {}));
    a.record(event);
    b.wait(event);
    b.enqueue({"go"}, on_gpu(driver, [&] { has_run = true; }));
    a.enqueue({"second"}, on_gpu(driver, [] {}));
  }
  a.synchronize();
  Event again;
  c.enqueue({"later"}, on_gpu(driver, [] {}));
  c.record(again);
  CHECK(driver.calls("cuEventCreate") == 1);  // there is one, which b still has to wait for, and c has recorded it
  driver.let_go(native_b);
  CHECK_NOTHROW(b.synchronize());
  CHECK(has_run);
  driver.let_go(native_c);
}

TEST_CASE("events of the driver are used again, so that a step makes none") {
  EmulatedDriver driver;
  CudaDevice device(patient(), driver.table());
  Event event;
  const auto step = [&] {
    for (int i = 0; i < 40; ++i) {
      Stream& stream = device.stream(static_cast<StreamRole>(i % kStreamRoles));
      stream.wait(event);
      stream.enqueue({"op"}, on_gpu(driver, [] {}));
      stream.record(event);
    }
    device.synchronize();
  };
  step();
  step();
  const int made = driver.calls("cuEventCreate");
  for (int i = 0; i < 10; ++i) step();
  CHECK(driver.calls("cuEventCreate") == made);
}

TEST_CASE("what a GPU's stream has the host do comes in its turn, up to the first that fails") {
  EmulatedDriver driver({.seed = GENERATE(range(1, 6))});
  CudaDevice device(patient(), driver.table());
  Stream &compute = device.stream(StreamRole::compute), &finish = device.stream(StreamRole::finish);
  std::vector<int> calls;
  const auto call = [&](int number) {
    return [&calls, number](ExecContext& exec) {
      call_on_host(exec, [&calls, number] {
        calls.push_back(number);
        if (number == 2) throw Error(ExitCode::io, "the disk has failed");
      });
    };
  };
  const auto pass = [](Stream& from, Stream& to) {
    Event event;
    from.record(event);
    to.wait(event);
  };
  finish.enqueue({"call"}, call(1));
  CHECK(calls.empty());
  pass(finish, compute);
  compute.enqueue({"run"}, on_gpu(driver, [&] { calls.push_back(10); }));
  pass(compute, finish);
  for (const int number : {2, 3}) finish.enqueue({"call"}, call(number));
  CHECK_THROWS_WITH(finish.synchronize(), Catch::Contains("the disk has failed"));
  CHECK(calls == std::vector<int>{1, 10, 2});
  finish.enqueue({"call"}, call(4));
  device.synchronize();
  CHECK(calls == std::vector<int>{1, 10, 2, 4});
}

TEST_CASE("streams have priorities: gathers before reductions before compute") {
  EmulatedDriver driver;
  CudaDevice device(patient(), driver.table());
  const auto priority = [&](StreamRole role) { return driver.priority(native(device, role)); };
  CHECK(priority(StreamRole::unshard) < priority(StreamRole::reduce));
  CHECK(priority(StreamRole::reduce) < priority(StreamRole::compute));
  CHECK(priority(StreamRole::finish) == priority(StreamRole::reduce));
  CHECK(priority(StreamRole::offload) == priority(StreamRole::compute));
}

TEST_CASE("what fails on the GPU is an error that names the last op, and how far each stream had come") {
  EmulatedDriver driver;
  CudaDevice device(patient(), driver.table());
  Stream& stream = device.stream(StreamRole::compute);
  Event event;
  stream.enqueue({"layer_norm"}, on_gpu(driver, [] {}));
  stream.record(event);
  stream.enqueue({"gelu"}, [&](ExecContext& exec) { driver.fail_on_gpu(exec.native_stream(), 700); });
  stream.enqueue({"adamw"}, on_gpu(driver, [] {}));
  stream.record(event);
  const std::string message = message_of([&] { device.synchronize(); });
  // Which call finds out is luck.
  CHECK_THAT(message,
             Catch::Contains(
                 ": CUDA error 700, an illegal memory access was encountered (GPU 0 (Emulated), stream 'compute', last "
                 "enqueued: adamw; "));
  CHECK_THAT(message, Catch::Contains("compute: ") && Catch::Contains("up to "));
  CHECK_THAT(message, !Catch::Contains("\n"));
}

TEST_CASE("a call of the driver that fails in work names the work's op") {
  EmulatedDriver driver;
  CudaDevice device(patient(), driver.table());
  Stream& stream = device.stream(StreamRole::reduce);
  bool has_run = false;
  stream.enqueue({"reduce_scatter:blocks.3"},
                 [&](ExecContext&) { check_cuda(*driver.table(), 1, "cuLaunchKernel", "somewhere"); });
  stream.enqueue({"skipped"}, [&](ExecContext&) { has_run = true; });
  CHECK_THROWS_WITH(stream.synchronize(),
                    Catch::Contains("cuLaunchKernel: CUDA error 1") &&
                        Catch::Contains("stream 'reduce', last enqueued: reduce_scatter:blocks.3"));
  CHECK_FALSE(has_run);
}

TEST_CASE("a GPU that stands still is a timeout that says where, and its device is left behind") {
  EmulatedDriver driver;
  {
    DeviceOptions options;
    options.sync_timeout_s = 0.05;
    CudaDevice device(options, driver.table());
    const Memory block = device.pool().acquire(4096, device.stream(StreamRole::compute), "activation");
    Event event;
    device.stream(StreamRole::unshard).enqueue({"all_gather:blocks.3"}, on_gpu(driver, [] {}));
    device.stream(StreamRole::unshard).record(event);
    driver.stand_still(true);
    device.stream(StreamRole::compute).wait(event);
    device.stream(StreamRole::compute).enqueue({"matmul"}, on_gpu(driver, [] {}));
    try {
      device.synchronize();
      FAIL("synchronize returned");
    } catch (const SyncTimeout& error) {
      CHECK(error.code() == ExitCode::peer_lost);
      CHECK_THAT(error.what(), Catch::Contains("stream 'compute' did not finish within 0.05 s"));
      CHECK_THAT(error.what(), Catch::Contains("compute: up to matmul; unshard: up to all_gather:blocks.3"));
    }
  }
  CHECK(driver.calls("cuMemFree") == 0);
  CHECK(driver.calls("cuStreamDestroy") == 0);
}

TEST_CASE("how far a GPU is can be asked by another thread") {
  EmulatedDriver driver;
  CudaDevice device(patient(), driver.table());
  Stream& stream = device.stream(StreamRole::compute);
  driver.stand_still(true);
  Event first, second;
  stream.enqueue({"embedding"}, on_gpu(driver, [] {}));
  stream.record(first);
  stream.enqueue({"attention"}, on_gpu(driver, [] {}));
  stream.record(second);
  std::uint64_t before = 0, after = 0;
  std::string busy, idle;
  std::thread([&] {
    before = device.completed();
    busy = device.activity();
    driver.stand_still(false);
    for (int i = 0; i < 100 && device.completed() < 4; ++i) continue;
    after = device.completed();
    idle = device.activity();
  }).join();
  CHECK(before == 0);
  CHECK(busy == "compute: up to embedding");
  CHECK(after == 4);
  CHECK(idle.empty());
}

}  // namespace cuda_stream_test
