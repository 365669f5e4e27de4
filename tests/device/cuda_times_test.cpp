// Times of a GPU's work, on an emulated one, whose clock the tests move. The cases that hold for every device are in
// profile_test.cpp.
#include <catch2/catch.hpp>
#include <chrono>

#include "tests/device/test_devices.h"

namespace cuda_times_test {

using namespace zs;
using namespace zs::test;

namespace {

/// The events of an entry take so long themselves, in milliseconds.
constexpr double kEventsMs = 0.01;

struct Gpu {
  EmulatedDriver driver;
  CudaDevice device{patient(), driver.table()};

  void enqueue(StreamRole role, const std::string& name, double ms) {
    device.stream(role).enqueue({name}, [this, ms](ExecContext& exec) {
      driver.launch(exec.native_stream(), [this, ms] { driver.pass_time(ms); });
    });
  }
  const std::vector<OpTime>& times(StreamRole role) { return device.profile().times(role); }
};

}  // namespace

TEST_CASE("times of a GPU's ops are the GPU's, not the host's, and count from the host's clock") {
  Gpu gpu;
  const auto now_ns = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  gpu.device.profile().start();
  const std::int64_t before_ns = now_ns();
  gpu.enqueue(StreamRole::compute, "short", 1.5);
  const std::int64_t after_ns = now_ns();
  gpu.enqueue(StreamRole::compute, "long", 700);
  CHECK(gpu.times(StreamRole::compute).empty());
  gpu.device.synchronize();
  const auto& times = gpu.times(StreamRole::compute);
  REQUIRE(times.size() == 2);
  CHECK(times[0].ms() == Approx(1.5).margin(kEventsMs));
  CHECK(times[1].ms() == Approx(700).margin(kEventsMs));
  CHECK(times[0].start_ns >= before_ns);
  CHECK(times[0].start_ns <= after_ns + static_cast<std::int64_t>(kEventsMs * 1e6));
  CHECK(times[1].start_ns >= times[0].end_ns);
}

TEST_CASE("a stream of a GPU that waits says for whom and how long") {
  Gpu gpu;
  gpu.device.profile().start();
  Event event;
  gpu.enqueue(StreamRole::unshard, "gather", 8);
  gpu.device.stream(StreamRole::unshard).record(event);
  gpu.device.stream(StreamRole::compute).wait(event);
  gpu.enqueue(StreamRole::compute, "use", 1);
  gpu.device.synchronize();
  const auto& times = gpu.times(StreamRole::compute);
  REQUIRE(times.size() == 2);
  CHECK(times[0].is_wait);
  CHECK(times[0].name == "unshard");
  const OpTime& gather = gpu.times(StreamRole::unshard).front();
  CHECK(times[0].end_ns >= gather.end_ns);
  CHECK(times[1].start_ns >= times[0].end_ns);
  CHECK(times[1].ms() == Approx(1).margin(kEventsMs));
}

TEST_CASE("microseconds are told apart hours after the first of them") {
  Gpu gpu;
  gpu.device.profile().start();
  constexpr double kHoursMs = 1e7;  // a float of so many milliseconds has none to spare below one
  for (int round = 0; round < 3; ++round) {
    gpu.enqueue(StreamRole::compute, "pause", kHoursMs);
    gpu.enqueue(StreamRole::reduce, "beside", 0.25);
    gpu.device.synchronize();
    gpu.device.profile().clear();
    gpu.enqueue(StreamRole::compute, "op", 0.25);
    gpu.device.synchronize();
    REQUIRE(gpu.times(StreamRole::compute).size() == 1);
    CHECK(gpu.times(StreamRole::compute)[0].ms() == Approx(0.25).margin(kEventsMs));
  }
}

TEST_CASE("an untimed GPU has no timed events, a timed one uses them again") {
  Gpu gpu;
  const auto step = [&] {
    for (int i = 0; i < 20; ++i) gpu.enqueue(StreamRole::compute, "op", 1);
    gpu.device.synchronize();
    gpu.device.profile().clear();
  };
  step();
  CHECK(gpu.driver.calls("cuEventCreate") == 0);
  gpu.device.profile().start();
  step();
  step();
  const int made = gpu.driver.calls("cuEventCreate");
  CHECK(made > 0);
  step();
  CHECK(gpu.driver.calls("cuEventCreate") == made);
  gpu.device.profile().stop();
  const int asked = gpu.driver.calls("cuEventElapsedTime");
  step();
  CHECK(gpu.driver.calls("cuEventElapsedTime") == asked);
}

TEST_CASE("a GPU that fails leaves no times of what nobody knows the end of") {
  Gpu gpu;
  gpu.device.profile().start();
  gpu.enqueue(StreamRole::compute, "good", 1);
  gpu.device.stream(StreamRole::compute).enqueue({"bad"}, [&](ExecContext& exec) {
    gpu.driver.fail_on_gpu(exec.native_stream(), 700);
  });
  CHECK_THROWS_WITH(gpu.device.synchronize(), Catch::Contains("CUDA error 700"));
  CHECK(gpu.times(StreamRole::compute).empty());
}

}  // namespace cuda_times_test
