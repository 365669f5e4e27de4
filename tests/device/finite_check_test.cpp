// What ops of a CPU device write that is not finite, and which of them was the first.
#include "runtime/device/finite_check.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "runtime/base/buffer.h"
#include "tests/device/test_devices.h"

namespace zs::test::finite_check_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Fills a buffer of the host on a stream, after so many milliseconds.
void fill(Device& device, StreamRole role, const char* name, std::vector<float>& out, std::vector<float> values,
          int delay_ms = 0, std::vector<float>* read = nullptr) {
  const auto buffer_of = [](std::vector<float>& of) {
    return Buffer{of.data(), static_cast<std::int64_t>(of.size()), DType::f32, DeviceKind::cpu};
  };
  OpInfo info{name, {}, {buffer_of(out)}};
  if (read != nullptr) info.reads.push_back(buffer_of(*read));
  device.stream(role).enqueue(std::move(info), [&out, values = std::move(values), delay_ms](ExecContext&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    std::copy(values.begin(), values.end(), out.begin());
  });
}

}  // namespace

TEST_CASE("the first op of the program that writes what is not finite is found, whichever stream is ahead") {
  const std::unique_ptr<Device> device = Device::create(DeviceKind::cpu, {});
  FiniteCheck check;
  std::vector<float> good(4), early(4), late(4), before(4);
  fill(*device, StreamRole::compute, "unseen", before, {kInf, 0, 0, 0});
  device->synchronize();  // another stream reads it
  device->trace().check_finite(&check);
  device->trace().set_phase("forward");
  check.place().unit = "blocks.1";
  check.place().micro_batch = 2;
  fill(*device, StreamRole::compute, "good", good, {1, -2, 3e38f, 0});
  fill(*device, StreamRole::compute, "early", early, {1, 2, -kInf, kInf}, 50, &good);
  check.place().unit = "blocks.2";
  fill(*device, StreamRole::reduce, "late", late, {kInf, 0, 0, 0}, 0, &before);
  device->synchronize();
  REQUIRE(check.first());
  const FiniteCheck::Finding found = *check.first();
  CHECK(found.op == "early");
  CHECK(found.stream == StreamRole::compute);
  CHECK(std::string(found.place.phase) == "forward");
  CHECK(found.place.unit == "blocks.1");
  CHECK(found.place.micro_batch == 2);
  CHECK((found.element == 2 && found.elems == 4 && found.count == 2 && found.value == -static_cast<double>(kInf)));
  CHECK_FALSE(found.read_some);
  FiniteCheck next, last;
  device->trace().check_finite(&next);
  fill(*device, StreamRole::reduce, "late", late, {kInf, 0, 0, 0}, 0, &before);
  device->synchronize();
  REQUIRE(next.first());
  CHECK(next.first()->read_some);
  device->trace().check_finite(&last);
  device->trace().check_finite(nullptr);
  fill(*device, StreamRole::reduce, "late", late, {kInf, 0, 0, 0});
  device->synchronize();
  CHECK_FALSE(last.first());
}

}  // namespace zs::test::finite_check_test
