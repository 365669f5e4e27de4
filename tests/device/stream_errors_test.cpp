#include <catch2/catch.hpp>

#include "tests/device/test_devices.h"

namespace stream_errors_test {

using namespace zs;
using test::cpu_device, test::patient, test::TestDevice;

TEST_CASE("the first exception skips later work and is thrown by synchronize") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  Stream& stream = device->stream(StreamRole::compute);
  bool has_run = false;
  stream.enqueue({"fail", {}, {}}, [](ExecContext&) { throw Error(ExitCode::io, "first"); });
  stream.enqueue({"fail again", {}, {}}, [](ExecContext&) { throw Error(ExitCode::io, "second"); });
  stream.enqueue({"skipped", {}, {}}, [&](ExecContext&) { has_run = true; });
  CHECK_THROWS_WITH(stream.synchronize(), "first");
  CHECK_FALSE(has_run);
}

TEST_CASE("an event carries the error to the streams that wait for it") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute),
         &c = device->stream(StreamRole::reduce);
  bool has_run = false;
  Event from_a, from_b;
  a.enqueue({"fail", {}, {}}, [](ExecContext&) { throw Error(ExitCode::io, "broken"); });
  a.record(from_a);
  b.wait(from_a);
  b.record(from_b);
  c.wait(from_b);
  c.enqueue({"skipped", {}, {}}, [&](ExecContext&) { has_run = true; });
  CHECK_THROWS_WITH(c.synchronize(), "broken");
  CHECK_THROWS_WITH(b.synchronize(), "broken");
  CHECK_FALSE(has_run);
}

TEST_CASE("an event recorded before the error carries none") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute);
  bool has_run = false;
  Event event;
  a.record(event);
  a.enqueue({"fail", {}, {}}, [](ExecContext&) { throw Error(ExitCode::io, "broken"); });
  b.wait(event);
  b.enqueue({"run", {}, {}}, [&](ExecContext&) { has_run = true; });
  b.synchronize();
  CHECK(has_run);
  CHECK_THROWS_WITH(a.synchronize(), "broken");
}

TEST_CASE("after its error was thrown a device is usable again, old events included") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute),
         &c = device->stream(StreamRole::reduce);
  Event old;
  a.enqueue({"fail", {}, {}}, [](ExecContext&) { throw Error(ExitCode::io, "broken"); });
  a.record(old);
  b.wait(old);
  CHECK_THROWS_WITH(device->synchronize(), "broken");
  bool has_run = false, has_run_there = false;
  b.wait(old);  // its error has been thrown
  b.enqueue({"run", {}, {}}, [&](ExecContext&) { has_run = true; });
  c.wait(old);  // for the first time
  c.enqueue({"run", {}, {}}, [&](ExecContext&) { has_run_there = true; });
  device->synchronize();
  CHECK(has_run);
  CHECK(has_run_there);
}

TEST_CASE("records made after an error do not carry it") {
  const TestDevice device(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute);
  a.enqueue({"fail", {}, {}}, [](ExecContext&) { throw Error(ExitCode::io, "broken"); });
  for (int i = 0; i < 20; ++i) {
    Event event;
    a.record(event);
    b.wait(event);
  }
  CHECK_THROWS_WITH(device->synchronize(), "broken");
  for (int i = 0; i < 20; ++i) {
    Event event;
    a.record(event);
    b.wait(event);
  }
  CHECK_NOTHROW(device->synchronize());
}

}  // namespace stream_errors_test
