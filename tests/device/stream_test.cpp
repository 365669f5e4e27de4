#include <pthread.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <numeric>
#include <thread>

#include "runtime/device/cpu_topology.h"
#include "runtime/device/device.h"
#include "runtime/device/short_time_slice.h"
#include "tests/device/test_devices.h"

namespace stream_test {

using namespace zs;
using test::cpu_device, test::patient, test::TestDevice;

namespace {

Buffer buffer_of(std::vector<float>& values) {
  return {values.data(), static_cast<std::int64_t>(values.size()), DType::f32, DeviceKind::cpu};
}

struct Gate {
  std::promise<void> promise;
  std::shared_future<void> future = promise.get_future().share();
  void open() { promise.set_value(); }
  Work work() const {
    return [passed = future](ExecContext&) { passed.wait(); };
  }
};

}  // namespace

TEST_CASE("a stream runs its work in the order of enqueuing") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  Stream& stream = device->stream(StreamRole::compute);
  std::vector<int> order;
  for (int i = 0; i < 10000; ++i) stream.enqueue({"push", {}, {}}, [&order, i](ExecContext&) { order.push_back(i); });
  stream.synchronize();
  std::vector<int> expected(10000);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(order == expected);
}

TEST_CASE("enqueue returns before the work runs") {
  auto device = cpu_device(patient());
  Gate gate;
  device->stream(StreamRole::compute).enqueue({"gate", {}, {}}, gate.work());
  gate.open();  // reached only when enqueue did not wait for the work
  device->synchronize();
}

TEST_CASE("streams, and the threads that they start, ask for short turns of the processor") {
  const std::uint64_t usual = slice_of_this_thread();
  if (usual == 0) {
    WARN("this Linux does not say how long a thread's turns are: 6.12 does");
    return;
  }
  CHECK(usual > kShortSliceNs);
  auto device = cpu_device(patient());
  std::array<std::array<std::uint64_t, 2>, kStreamRoles> slices{};
  for (int role = 0; role < kStreamRoles; ++role)
    device->stream(static_cast<StreamRole>(role))
        .enqueue({"slice", {}, {}}, [&own = slices[static_cast<std::size_t>(role)]](ExecContext&) {
          own[0] = slice_of_this_thread();
          std::thread([&own] { own[1] = slice_of_this_thread(); }).join();
        });
  device->synchronize();
  for (const auto& own : slices) CHECK(own == std::array{kShortSliceNs, kShortSliceNs});
}

TEST_CASE("streams run at the same time") {
  auto device = cpu_device(patient());
  std::vector<Gate> gates(kStreamRoles);
  for (int role = 0; role < kStreamRoles; ++role) {
    // Each stream lets the previous one go: no order of running them one after the other finishes.
    Stream& stream = device->stream(static_cast<StreamRole>(role));
    Gate& next = gates[(role + 1) % kStreamRoles];
    if (role == 0) stream.enqueue({"open", {}, {}}, [&next](ExecContext&) { next.open(); });
    stream.enqueue({"wait", {}, {}}, gates[role].work());
    if (role != 0) stream.enqueue({"open", {}, {}}, [&next](ExecContext&) { next.open(); });
  }
  device->synchronize();
  CHECK(gates[0].future.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
}

TEST_CASE("a wait holds the stream until the event's record is reached") {
  auto device = cpu_device(patient());
  Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute);
  Gate gate;
  int value = 0, seen = -1;
  Event event;
  a.enqueue({"gate", {}, {}}, gate.work());
  a.enqueue({"write", {}, {}}, [&](ExecContext&) { value = 7; });
  a.record(event);
  b.wait(event);
  b.enqueue({"read", {}, {}}, [&](ExecContext&) { seen = value; });
  gate.open();
  b.synchronize();
  CHECK(seen == 7);
}

TEST_CASE("a wait binds to the latest record at the time of the call") {
  auto device = cpu_device(patient());
  Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute);
  Gate later;
  bool has_run = false;
  Event event;
  a.record(event);
  b.wait(event);
  // Recorded again behind work that only b's progress releases: had the wait bound to this record, nothing would
  // finish.
  a.enqueue({"later", {}, {}}, later.work());
  a.record(event);
  b.enqueue({"go", {}, {}}, [&](ExecContext&) {
    has_run = true;
    later.open();
  });
  device->synchronize();
  CHECK(has_run);
}

TEST_CASE("an event recorded again holds later waits to the new record") {
  auto device = cpu_device(patient());
  Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute);
  Gate gate;
  int value = 1, seen = 0;
  Event event;
  a.record(event);
  a.enqueue({"gate", {}, {}}, gate.work());
  a.enqueue({"write", {}, {}}, [&](ExecContext&) { value = 2; });
  a.record(event);
  b.wait(event);
  b.enqueue({"read", {}, {}}, [&](ExecContext&) { seen = value; });
  gate.open();
  device->synchronize();
  CHECK(seen == 2);
}

TEST_CASE("waiting for an event that was never recorded is a no-op") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  Stream& stream = device->stream(StreamRole::compute);
  Event event;
  CHECK_FALSE(event.is_recorded());
  stream.wait(event);
  bool has_run = false;
  stream.enqueue({"run", {}, {}}, [&](ExecContext&) { has_run = true; });
  stream.synchronize();
  CHECK(has_run);
}

TEST_CASE("an event may outlive its device and be recorded on another") {
  const DeviceKind kind = GENERATE(DeviceKind::cpu, DeviceKind::cuda);
  Event event, copy;
  {
    const auto device = TestDevice(kind);
    device->stream(StreamRole::compute).record(event);
    copy = event;
  }
  const auto device = TestDevice(kind);
  device->stream(StreamRole::compute).record(event);
  device->stream(StreamRole::reduce).wait(event);
  device->synchronize();
  CHECK(event.is_recorded());
}

TEST_CASE("thousands of events between four streams keep every order") {
  auto device = cpu_device(patient());
  std::vector<std::int64_t> values(1, 0);
  const Buffer buffer{values.data(), 1, DType::i64, DeviceKind::cpu};
  Event last;
  constexpr int kSteps = 4000;
  for (int step = 0; step < kSteps; ++step) {
    Stream& stream = device->stream(static_cast<StreamRole>(step * 7 % kStreamRoles));
    stream.wait(last);
    stream.enqueue({"count", {buffer}, {buffer}},
                   [&values, step](ExecContext&) { values[0] = values[0] == step ? step + 1 : -1; });
    stream.record(last);
    if (step % 1000 == 999) stream.synchronize();
  }
  device->synchronize();
  CHECK(values[0] == kSteps);
}

TEST_CASE("what work captured is gone after synchronize, whether it ran or was skipped") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  Stream& stream = device->stream(StreamRole::compute);
  const auto counted = std::make_shared<int>(0);
  stream.enqueue({"run", {}, {}}, [counted](ExecContext&) {});
  stream.enqueue({"fail", {}, {}}, [counted](ExecContext&) { throw Error(ExitCode::io, "broken"); });
  stream.enqueue({"skipped", {}, {}}, [counted](ExecContext&) {});
  CHECK_THROWS(stream.synchronize());
  CHECK(counted.use_count() == 1);
}

TEST_CASE("a synchronize that takes too long names what every stream is doing") {
  DeviceOptions options;
  options.sync_timeout_s = 0.05;
  Gate gate;
  auto device = cpu_device(options);
  Event event;
  device->stream(StreamRole::unshard).enqueue({"all_gather block.3", {}, {}}, gate.work());
  device->stream(StreamRole::unshard).record(event);
  device->stream(StreamRole::compute).wait(event);
  try {
    device->synchronize();
    FAIL("synchronize returned");
  } catch (const SyncTimeout& error) {
    CHECK(error.code() == ExitCode::peer_lost);
    CHECK_THAT(error.what(), Catch::Contains("stream 'compute' did not finish within 0.05 s"));
    CHECK_THAT(error.what(), Catch::Contains("compute: waits for stream 'unshard'; unshard: all_gather block.3"));
  }
  gate.open();
}

TEST_CASE("a device with a stream that never ends can be destroyed") {
  DeviceOptions options;
  options.sync_timeout_s = 0.05;
  auto entered = std::make_shared<Gate>(), never = std::make_shared<Gate>();
  {
    auto device = cpu_device(options);
    device->stream(StreamRole::reduce).enqueue({"hang", {}, {}}, [entered, never](ExecContext&) {
      never->future.wait();
      entered->open();
    });
    CHECK_THROWS_AS(device->synchronize(), SyncTimeout);
  }
  never->open();  // the thread left behind goes on with memory that is still there
  entered->future.wait();
}

TEST_CASE("destroying a device drains its streams") {
  std::atomic<int> count{0};
  {
    auto device = cpu_device(patient());
    for (int role = 0; role < kStreamRoles; ++role)
      for (int i = 0; i < 100; ++i)
        device->stream(static_cast<StreamRole>(role)).enqueue({"count", {}, {}}, [&](ExecContext&) { ++count; });
  }
  CHECK(count == 100 * kStreamRoles);
}

TEST_CASE("only the compute stream has the team, and each stream keeps its own state") {
  DeviceOptions options = patient();
  options.threads = 3;
  auto device = cpu_device(options);
  std::array<int, kStreamRoles> threads{}, calls{};
  for (int round = 0; round < 2; ++round)
    for (int role = 0; role < kStreamRoles; ++role)
      device->stream(static_cast<StreamRole>(role))
          .enqueue({"count", {}, {}}, [&threads, &calls, role](ExecContext& context) {
            threads[role] = context.threads();
            calls[role] = ++context.state<int>();
          });
  device->synchronize();
  CHECK(threads == std::array<int, kStreamRoles>{3, 1, 1, 1, 1});
  CHECK(calls == std::array<int, kStreamRoles>{2, 2, 2, 2, 2});
}

TEST_CASE("stream threads have names and run on the CPUs given") {
  DeviceOptions options = patient();
  options.cpus = {affinity_of_this_thread().back()};
  auto device = cpu_device(options);
  std::string name;
  std::vector<int> cpus;
  device->stream(StreamRole::reduce).enqueue({"ask", {}, {}}, [&](ExecContext&) {
    char text[16];
    if (pthread_getname_np(pthread_self(), text, sizeof(text)) == 0) name = text;
    cpus = affinity_of_this_thread();
  });
  device->synchronize();
  CHECK(name == "zs-reduce");
  CHECK(cpus == options.cpus);
}

TEST_CASE("CPUs that the system refuses are an error at the first synchronize") {
  DeviceOptions options = patient();
  options.cpus = {4095};
  auto device = cpu_device(options);
  CHECK_THROWS_WITH(device->synchronize(), Catch::Contains("cannot run on CPUs 4095"));
}

TEST_CASE("of waits that nothing comes between, those that others imply are left out") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::meta, DeviceKind::cuda));
  Stream &unshard = device->stream(StreamRole::unshard), &compute = device->stream(StreamRole::compute),
         &reduce = device->stream(StreamRole::reduce);
  const auto work = [](Stream& stream) { stream.enqueue({"work"}, [](ExecContext&) {}); };
  const auto waits = [&] {
    const auto& entries = device->trace().entries();
    return std::count_if(entries.begin(), entries.end(),
                         [](const TraceEntry& entry) { return entry.kind == TraceEntry::Kind::wait; });
  };
  device->trace().start();
  Event first, second, third;
  work(unshard);
  unshard.record(first);
  work(unshard);
  unshard.record(second);
  reduce.wait(second);
  work(reduce);
  reduce.record(third);
  CHECK(waits() == 1);
  compute.wait(first);
  compute.wait(third);  // after the second, which is after the first
  compute.wait(second);
  CHECK(waits() == 1);
  work(compute);
  CHECK(waits() == 2);
  device->synchronize();
}

TEST_CASE("two records with nothing between them are one, and a wait between them counts") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::meta, DeviceKind::cuda));
  Stream &unshard = device->stream(StreamRole::unshard), &compute = device->stream(StreamRole::compute);
  Event first, second, third, fourth, other;
  compute.enqueue({"work"}, [](ExecContext&) {});
  compute.record(first);
  compute.record(second);
  CHECK(first.id() == second.id());
  unshard.enqueue({"work"}, [](ExecContext&) {});
  unshard.record(other);
  compute.wait(other);
  compute.record(third);
  CHECK(third.id() != second.id());
  CHECK(third.implies(other));
  CHECK_FALSE(second.implies(other));
  compute.enqueue({"work"}, [](ExecContext&) {});
  compute.record(fourth);
  CHECK(fourth.id() != third.id());
  device->synchronize();
}

TEST_CASE("a delayed device gives the same results") {
  DeviceOptions options = patient();
  options.perturb_seed = GENERATE(1, 2, 3);
  auto device = cpu_device(options);
  Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute);
  std::vector<float> values(64, 0);
  Event there, back;
  for (int i = 0; i < 50; ++i) {
    a.wait(back);
    a.enqueue({"add", {}, {buffer_of(values)}}, [&](ExecContext&) { values[5] += 1; });
    a.record(there);
    b.wait(there);
    b.enqueue({"double", {}, {buffer_of(values)}}, [&](ExecContext&) { values[5] = std::fmod(2 * values[5], 1021.f); });
    b.record(back);
  }
  device->synchronize();
  float expected = 0;
  for (int i = 0; i < 50; ++i) expected = std::fmod(2 * (expected + 1), 1021.f);
  CHECK(values[5] == expected);
}

TEST_CASE("declared ranges are only touched, never changed") {
  auto device = cpu_device(patient());
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 1.f);
  const std::vector<float> before = values;
  device->stream(StreamRole::compute).enqueue({"nothing", {buffer_of(values)}, {buffer_of(values)}}, [](ExecContext&) {
  });
  device->synchronize();
  CHECK(values == before);
}

}  // namespace stream_test
