#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/device/test_devices.h"

namespace profile_test {

using namespace zs;
using namespace zs::test;

namespace {

void enqueue(
    Stream& stream, std::string name, Work work = [](ExecContext&) {}) {
  stream.enqueue({std::move(name), {}, {}}, std::move(work));
}

std::vector<std::string> names(const std::vector<OpTime>& times) {
  std::vector<std::string> found;
  for (const OpTime& time : times) found.push_back((time.is_wait ? "waits for " : "") + time.name);
  return found;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("nothing is timed until the profile is started, and nothing that is enqueued after it is stopped") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Stream& compute = device->stream(StreamRole::compute);
  std::atomic<bool> go = false;
  enqueue(compute, "before", [&go](ExecContext&) {
    while (!go) std::this_thread::yield();
  });
  device->profile().start();
  enqueue(compute, "within");
  device->profile().stop();
  enqueue(compute, "after");
  go = true;  // all three run now, with the profile stopped
  device->synchronize();
  CHECK(names(device->profile().times(StreamRole::compute)) == Names{"within"});
}

TEST_CASE("a stream's times are in its order and do not overlap") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  device->profile().start();
  for (const char* name : {"a", "b", "c"}) enqueue(device->stream(StreamRole::reduce), name);
  device->synchronize();
  const auto& times = device->profile().times(StreamRole::reduce);
  REQUIRE(names(times) == Names{"a", "b", "c"});
  for (const OpTime& time : times) CHECK(time.start_ns <= time.end_ns);
  CHECK(times[0].end_ns <= times[1].start_ns);
  CHECK(times[1].end_ns <= times[2].start_ns);
  CHECK(device->profile().times(StreamRole::compute).empty());
}

TEST_CASE("the time in an op is inside its entry, and a wait ends after what it waits for") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Stream &unshard = device->stream(StreamRole::unshard), &compute = device->stream(StreamRole::compute);
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  std::int64_t in_gather_ns = 0;
  device->profile().start();
  enqueue(unshard, "gather", [&](ExecContext&) { in_gather_ns = now(); });
  Event event;
  unshard.record(event);
  compute.wait(event);
  enqueue(compute, "use");
  device->synchronize();
  const auto& gathers = device->profile().times(StreamRole::unshard);
  const auto& uses = device->profile().times(StreamRole::compute);
  REQUIRE(names(gathers) == Names{"gather"});
  REQUIRE(names(uses) == Names{"waits for unshard", "use"});
  CHECK(gathers[0].start_ns <= in_gather_ns);
  CHECK(in_gather_ns <= gathers[0].end_ns);
  CHECK(gathers[0].end_ns <= uses[0].end_ns);
  CHECK(uses[0].end_ns <= uses[1].start_ns);
}

TEST_CASE("an op that throws and those skipped after it leave no times") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  Stream& compute = device->stream(StreamRole::compute);
  device->profile().start();
  enqueue(compute, "good");
  enqueue(compute, "bad", [](ExecContext&) { throw std::runtime_error("as planned"); });
  enqueue(compute, "skipped");
  CHECK_THROWS_WITH(device->synchronize(), "as planned");
  CHECK(names(device->profile().times(StreamRole::compute)) == Names{"good"});
}

TEST_CASE("a cleared profile goes on from nothing") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  device->profile().start();
  enqueue(device->stream(StreamRole::compute), "first");
  device->synchronize();
  device->profile().clear();
  enqueue(device->stream(StreamRole::compute), "second");
  device->synchronize();
  CHECK(names(device->profile().times(StreamRole::compute)) == Names{"second"});
}

TEST_CASE("the meta device times nothing") {
  const auto device = Device::create(DeviceKind::meta, {});
  device->profile().start();
  enqueue(device->stream(StreamRole::compute), "never runs");
  device->synchronize();
  CHECK(device->profile().times(StreamRole::compute).empty());
}

TEST_CASE("a wait names the record that it waits for, which was passed before the wait ended") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Stream &unshard = device->stream(StreamRole::unshard), &compute = device->stream(StreamRole::compute);
  Event before, first, second;
  enqueue(unshard, "earlier");
  unshard.record(before);
  device->profile().start();
  enqueue(unshard, "gather");
  unshard.record(first);
  compute.wait(first);
  enqueue(compute, "use");
  enqueue(unshard, "gather again");
  unshard.record(second);
  compute.wait(second);
  enqueue(compute, "use again");
  device->synchronize();
  const auto& records = device->profile().records(StreamRole::unshard);
  const auto& uses = device->profile().times(StreamRole::compute);
  REQUIRE(records.size() == 2);
  REQUIRE(names(uses) == Names{"waits for unshard", "use", "waits for unshard", "use again"});
  CHECK(records[0].id == first.id());
  CHECK(records[1].id == second.id());
  CHECK(uses[0].record_id == first.id());
  CHECK(uses[2].record_id == second.id());
  CHECK(records[0].ns <= uses[0].end_ns);
  CHECK(device->profile().times(StreamRole::unshard)[0].end_ns <= records[0].ns);
  device->profile().clear();
  CHECK(device->profile().records(StreamRole::unshard).empty());
}

TEST_CASE("an op's time has its phase, and what it declares to read and write") {
  const auto device = Device::create(DeviceKind::cpu, {});
  std::array<float, 6> memory{};
  const Buffer in{memory.data(), 4, DType::f32, DeviceKind::cpu},
      out{memory.data() + 4, 2, DType::f32, DeviceKind::cpu};
  device->profile().start();
  device->trace().set_phase("backward");
  device->stream(StreamRole::compute).enqueue({"op", {in}, {out}}, [](ExecContext&) {});
  device->trace().set_phase("optimizer");
  device->synchronize();
  const OpTime& time = device->profile().times(StreamRole::compute).at(0);
  CHECK(time.phase == std::string("backward"));
  REQUIRE(time.reads.size() == 1);
  CHECK(time.reads[0].elems == 4);
  CHECK(time.writes.at(0).data == out.data);
}

}  // namespace profile_test
