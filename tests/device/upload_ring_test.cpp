#include "runtime/device/upload_ring.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "tests/device/test_devices.h"

namespace upload_ring_test {

using namespace zs;
using namespace zs::test;

namespace {

DeviceOptions with_ring(std::int64_t bytes, double timeout_s = 30) {
  DeviceOptions options;
  options.sync_timeout_s = timeout_s;
  options.upload_bytes = bytes;
  return options;
}

void upload(Stream& stream, const Buffer& out, const std::vector<std::int32_t>& values) {
  stream.enqueue({"upload", {}, {out}}, [&](ExecContext& exec) {
    exec.uploads().upload(static_cast<CUstream_st*>(exec.native_stream()), out, values.data());
  });
}

}  // namespace

TEST_CASE(
    "uploads of any size reach the GPU whole, through a ring that is much smaller, in the order of their streams") {
  EmulatedDriver driver({.seed = GENERATE(range(1, 11))});
  CudaDevice device(with_ring(1000), driver.table());
  Stream &compute = device.stream(StreamRole::compute), &reduce = device.stream(StreamRole::reduce);
  std::vector<std::pair<Memory, std::vector<std::int32_t>>> sent;
  for (std::int64_t i = 0; i < 60; ++i) {
    const std::int64_t elems = i * 37 % 300 + (i % 20 == 7 ? 2000 : 0);
    std::vector<std::int32_t> values(static_cast<std::size_t>(elems));
    std::iota(values.begin(), values.end(), static_cast<std::int32_t>(i * 10000));
    Stream& stream = i % 3 == 0 ? reduce : compute;
    Memory memory = device.pool().acquire(elems * 4, stream, "activation");
    const std::vector<std::int32_t> kept = values;
    stream.enqueue({"busy"}, [&](ExecContext& exec) {  // so that the GPU falls behind
      for (int launch = 0; launch < 8; ++launch) driver.launch(exec.native_stream(), [] {});
    });
    upload(stream, memory.buffer(DType::i32, elems), values);
    std::fill(values.begin(), values.end(), -1);  // it may change at once
    sent.emplace_back(std::move(memory), kept);
  }
  device.synchronize();
  for (const auto& [memory, values] : sent) {
    const Buffer buffer = memory.buffer(DType::i32, std::ssize(values));
    CHECK(std::equal(values.begin(), values.end(), buffer.as<std::int32_t>()));
  }
}

TEST_CASE("memory for uploads is locked with the device, once, and given back") {
  EmulatedDriver driver;
  {
    CudaDevice device(with_ring(4096), driver.table());
    Stream& stream = device.stream(StreamRole::compute);
    const Memory memory = device.pool().acquire(400, stream, "activation");
    CHECK(device.pinned_memory().counter().live_by_label() == std::map<std::string, std::int64_t>{{"uploads", 4096}});
    for (int i = 0; i < 100; ++i) upload(stream, memory.buffer(DType::i32, 100), std::vector<std::int32_t>(100, i));
    CHECK(driver.calls("cuMemHostAlloc") == 1);
    device.synchronize();
    const int events = driver.calls("cuEventCreate");
    for (int i = 0; i < 5; ++i) upload(stream, memory.buffer(DType::i32, 100), std::vector<std::int32_t>(100, i));
    CHECK(driver.calls("cuEventCreate") == events);
    device.synchronize();
  }
  CHECK(driver.live_handles() == 0);
}

TEST_CASE("one half of the ring is filled while the other is on its way") {
  EmulatedDriver driver;
  CudaDevice device(with_ring(1024, 0.2), driver.table());
  Stream &first = device.stream(StreamRole::compute), &second = device.stream(StreamRole::reduce);
  const Memory memory = device.pool().acquire(512, first, "activation"),
               other = device.pool().acquire(512, second, "activation");
  const std::vector<std::int32_t> values(128, 1);
  void *const native_first = native(device, StreamRole::compute), *const native_second =
                                                                      native(device, StreamRole::reduce);
  driver.hold(native_first);
  driver.hold(native_second);
  upload(first, memory.buffer(DType::i32, 128), values);
  upload(second, other.buffer(DType::i32, 128), values);
  driver.let_go(native_first);
  first.synchronize();
  upload(first, memory.buffer(DType::i32, 128), values);  // into the half that the GPU has taken: the other is held
  first.synchronize();
  driver.let_go(native_second);
  device.synchronize();
}

TEST_CASE("an upload that finds the ring full waits for the GPU, no longer than any wait") {
  EmulatedDriver driver;
  CudaDevice device(with_ring(1024, 0.2), driver.table());
  Stream& stream = device.stream(StreamRole::compute);
  const Memory memory = device.pool().acquire(400, stream, "activation");
  driver.stand_still(true);
  for (int i = 0; i < 4; ++i) upload(stream, memory.buffer(DType::i32, 100), std::vector<std::int32_t>(100, i));
  driver.stand_still(false);
  CHECK_THROWS_WITH(device.synchronize(), Catch::Contains("the GPU has not taken what was uploaded within 0.2 s") &&
                                              Catch::Contains("; compute: ") && Catch::Contains("upload"));
}

TEST_CASE("an upload that finds the ring full hears what goes wrong behind any stream's back") {
  struct Watch final : StreamWatch {
    int asked = 0;
    void check() override {
      if (++asked == 3) throw Error(ExitCode::peer_lost, "rank 1 has ended", "a communicator");
    }
    void finish() override {}
  };
  EmulatedDriver driver;
  CudaDevice device(with_ring(1024), driver.table());
  Stream &stream = device.stream(StreamRole::compute), &other = device.stream(StreamRole::unshard);
  const Memory memory = device.pool().acquire(400, stream, "activation");
  const auto watch = std::make_shared<Watch>();
  other.enqueue({"all_gather"}, [&](ExecContext& exec) { exec.state<StreamWatches>().add(watch); });
  driver.stand_still(true);
  for (int i = 0; i < 4; ++i) upload(stream, memory.buffer(DType::i32, 100), std::vector<std::int32_t>(100, i));
  CHECK(watch->asked == 3);
  driver.stand_still(false);
  CHECK_THROWS_WITH(stream.synchronize(), Catch::Contains("rank 1 has ended (a communicator)"));
}

}  // namespace upload_ring_test
