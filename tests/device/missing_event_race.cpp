// Two streams use one buffer. With the argument "ordered" an event orders them; with "missing" it does not, and only
// the order of time, which this program arranges, makes it look right: TSan must report it. Everything else that the
// host does between the two uses (records, other waits, handles that come and go, memory from the pool) must not order
// them.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "runtime/device/device.h"

using namespace zs;

namespace {

void let_streams_run() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

void make_noise(Device& device, Stream& a, Stream& b) {
  for (int i = 0; i < 50; ++i) {
    Event done_b;
    b.record(done_b);
    a.wait(done_b);  // an edge the other way
    Memory block_a = device.pool().acquire(128, a, "noise"), block_b = device.pool().acquire(256, b, "noise");
    a.enqueue({"noise", {}, {block_a.buffer(DType::u8, 128)}}, [](ExecContext&) {});
    b.enqueue({"noise", {}, {block_b.buffer(DType::u8, 256)}}, [](ExecContext&) {});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_ordered = argc == 2 && std::strcmp(argv[1], "ordered") == 0;
  if (argc != 2 || (!is_ordered && std::strcmp(argv[1], "missing") != 0)) {
    std::fputs("usage: missing_event_race ordered|missing\n", stderr);
    return 64;
  }
  DeviceOptions options;
  options.sync_timeout_s = 60;
  const auto device = Device::create(DeviceKind::cpu, options);
  Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute);
  Memory memory = device->pool().acquire(4096, a, "contested");
  const Buffer contested = memory.buffer(DType::u8, 4096);

  make_noise(*device, a, b);
  let_streams_run();
  Event written;
  a.enqueue({"write", {}, {contested}}, [](ExecContext&) {});
  a.record(written);
  let_streams_run();  // written, for all that a clock can tell
  if (is_ordered) b.wait(written);
  written = Event();
  make_noise(*device, a, b);
  let_streams_run();
  make_noise(*device, a, b);
  b.enqueue({"read", {contested}, {}}, [](ExecContext&) {});
  device->synchronize();
  return 0;
}
