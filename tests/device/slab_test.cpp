#include <catch2/catch.hpp>

#include "runtime/base/random.h"
#include "runtime/device/device.h"

namespace slab_test {

using namespace zs;

namespace {

std::uint64_t offset_of(const Memory& memory, const Memory& first) {
  return reinterpret_cast<std::uint64_t>(memory.address()) - reinterpret_cast<std::uint64_t>(first.address());
}

std::unique_ptr<Device> make_device(DeviceKind kind, std::int64_t slab_bytes) {
  return Device::create(kind, {.cpus = {}, .sync_timeout_s = 30, .slab_bytes = slab_bytes});
}

std::size_t waits_in(const Trace& trace) {
  std::size_t waits = 0;
  for (const TraceEntry& entry : trace.entries()) waits += entry.kind == TraceEntry::Kind::wait;
  return waits;
}

/// Random blocks that come and go on all streams; the offsets of all that came.
std::vector<std::uint64_t> run_program(Device& device, std::uint64_t seed) {
  const CounterRng rng(seed);
  Memory first = device.pool().acquire(64, device.stream(StreamRole::compute), "first");
  struct Block {
    Memory memory;
    Stream* stream;
  };
  std::vector<Block> live;
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const std::uint64_t bits = rng.bits(i);
    Stream& stream = device.stream(static_cast<StreamRole>(bits % 3));
    if (live.size() < 4 || (bits >> 8) % 5 < 2) {
      live.push_back(
          {device.pool().acquire(1 + static_cast<std::int64_t>((bits >> 16) % 5000), stream, "block"), &stream});
      const Memory& memory = live.back().memory;
      offsets.push_back(offset_of(memory, first));
      const Buffer block = memory.buffer(DType::u8, memory.bytes());
      stream.enqueue({"use", {}, {block}}, [](ExecContext&) {});
    } else {
      const std::size_t which = (bits >> 32) % live.size();
      Stream& user = device.stream(static_cast<StreamRole>((bits >> 40) % 3));
      Event used;
      live[which].stream->record(used);
      user.wait(used);
      live[which].memory.release(user);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  device.synchronize();
  return offsets;
}

}  // namespace

TEST_CASE("blocks of a slab lie at the lowest addresses where they fit, and free neighbours join") {
  const auto device = make_device(GENERATE(DeviceKind::cpu, DeviceKind::meta), 10 * 64);
  Stream& stream = device->stream(StreamRole::compute);
  Memory a = device->pool().acquire(128, stream, "a"), b = device->pool().acquire(64, stream, "b"),
         c = device->pool().acquire(100, stream, "c"), d = device->pool().acquire(64, stream, "d");
  const auto* begin = static_cast<std::byte*>(a.address());
  CHECK(b.address() == begin + 128);
  CHECK(c.address() == begin + 192);
  CHECK(d.address() == begin + 320);
  b.reset();
  c.reset();
  const Memory large = device->pool().acquire(192, stream, "large");  // fits where both were
  CHECK(large.address() == begin + 128);
  a.reset();
  const Memory small = device->pool().acquire(64, stream, "small"), next = device->pool().acquire(64, stream, "next");
  CHECK(small.address() == begin);
  CHECK(next.address() == begin + 64);
  CHECK(device->memory().allocation_calls() == 1);
  CHECK(device->memory().reserved_bytes() == 640);
}

TEST_CASE("what does not fit in the slab comes from outside it, and goes back there") {
  const auto device = make_device(DeviceKind::cpu, 256);
  Stream& stream = device->stream(StreamRole::compute);
  const Memory a = device->pool().acquire(192, stream, "a");
  Memory outside = device->pool().acquire(128, stream, "outside");
  CHECK(device->memory().allocation_calls() == 2);
  CHECK(device->memory().reserved_bytes() == 256 + 128);
  void* const address = outside.address();
  outside.reset();
  const Memory again = device->pool().acquire(128, stream, "again"),
               inside = device->pool().acquire(64, stream, "inside");
  CHECK(again.address() == address);
  CHECK(inside.address() == static_cast<std::byte*>(a.address()) + 192);
  CHECK(device->memory().allocation_calls() == 2);
}

TEST_CASE("a block cut from pieces of several streams waits for each of them, once") {
  const auto device = make_device(DeviceKind::meta, 1024);
  Stream &compute = device->stream(StreamRole::compute), &unshard = device->stream(StreamRole::unshard),
         &reduce = device->stream(StreamRole::reduce);
  Memory a = device->pool().acquire(128, compute, "a"), b = device->pool().acquire(128, unshard, "b"),
         c = device->pool().acquire(128, reduce, "c");
  const Memory fence = device->pool().acquire(640, compute, "fence");
  device->trace().start();
  a.reset();
  b.reset();
  c.reset();
  const Memory whole = device->pool().acquire(384, compute, "whole");
  compute.enqueue({"use", {}, {whole.buffer(DType::u8, 384)}}, [](ExecContext&) {});
  CHECK(waits_in(device->trace()) == 2);  // not for its own
}

TEST_CASE("a stream does not wait for a neighbour that it does not take over") {
  const auto device = make_device(DeviceKind::meta, 1024);
  Stream &compute = device->stream(StreamRole::compute), &reduce = device->stream(StreamRole::reduce);
  Memory a = device->pool().acquire(128, compute, "a"), b = device->pool().acquire(128, reduce, "b");
  const Memory fence = device->pool().acquire(768, compute, "fence");
  device->trace().start();
  a.reset();
  b.reset();
  const Memory part = device->pool().acquire(128, compute, "part");
  compute.synchronize();
  CHECK(waits_in(device->trace()) == 0);
  const Memory more = device->pool().acquire(64, compute, "more");
  compute.synchronize();
  CHECK(waits_in(device->trace()) == 1);
}

TEST_CASE("of free neighbours with one last user each keeps its own last use") {
  const auto device = make_device(DeviceKind::meta, 1024);
  Stream &compute = device->stream(StreamRole::compute), &reduce = device->stream(StreamRole::reduce);
  Memory old = device->pool().acquire(128, compute, "old"), recent = device->pool().acquire(128, compute, "recent");
  const Memory fence = device->pool().acquire(768, compute, "fence");
  device->trace().start();
  old.reset();
  Event event;
  compute.record(event);
  reduce.wait(event);
  compute.enqueue({"use", {}, {recent.buffer(DType::u8, 128)}}, [](ExecContext&) {});
  recent.reset();
  const Memory again = device->pool().acquire(128, reduce, "again");  // where `old` was: its use is waited for already
  reduce.synchronize();
  CHECK(waits_in(device->trace()) == 1);
  const Memory next = device->pool().acquire(128, reduce, "next");
  reduce.synchronize();
  CHECK(waits_in(device->trace()) == 2);
}

TEST_CASE("a block cut from two uses of one stream is ordered after both") {
  const auto device = make_device(DeviceKind::meta, 1024);
  Stream &compute = device->stream(StreamRole::compute), &reduce = device->stream(StreamRole::reduce);
  Memory a = device->pool().acquire(128, compute, "a"), b = device->pool().acquire(128, compute, "b");
  const Buffer first = a.buffer(DType::u8, 128), second = b.buffer(DType::u8, 128);
  const Memory fence = device->pool().acquire(768, compute, "fence");
  device->trace().start();
  const auto release = [&](Memory& memory, const Buffer& block) {
    compute.enqueue({"use", {}, {block}}, [](ExecContext&) {});
    memory.reset();
  };
  if (GENERATE(true, false)) {
    release(a, first);
    release(b, second);
  } else {
    release(b, second);
    release(a, first);
  }
  const Memory whole = device->pool().acquire(256, reduce, "whole");
  reduce.enqueue({"overwrite", {}, {whole.buffer(DType::u8, 256)}}, [](ExecContext&) {});
  CHECK(verify_order(device->trace().entries()).empty());
}

TEST_CASE("the length that a growing slab finds out is enough, and every place the same") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(1, 2, 3));
  const auto meta = make_device(DeviceKind::meta, Pool::kGrowingSlab);
  const auto planned = run_program(*meta, seed);
  const std::int64_t bytes = meta->memory().reserved_bytes();
  CHECK(bytes >= meta->memory().peak_bytes());
  const auto cpu = make_device(DeviceKind::cpu, bytes);
  CHECK(run_program(*cpu, seed) == planned);
  CHECK(cpu->memory().allocation_calls() == 1);
  CHECK(cpu->memory().peak_bytes() == meta->memory().peak_bytes());
}

TEST_CASE("whatever comes and goes in a slab is ordered by events") {
  const auto device = make_device(DeviceKind::meta, Pool::kGrowingSlab);
  device->trace().start();
  run_program(*device, static_cast<std::uint64_t>(GENERATE(4, 5)));
  const auto violations = verify_order(device->trace().entries());
  CHECK((violations.empty() ? "" : violations.front().message) == "");
}

TEST_CASE("large blocks of a slab begin at pages") {
  const auto device = make_device(DeviceKind::meta, Pool::kGrowingSlab);
  Stream& stream = device->stream(StreamRole::compute);
  const Memory first = device->pool().acquire(64, stream, "first"),
               large = device->pool().acquire(1 << 20, stream, "large"),
               small = device->pool().acquire(64, stream, "small");
  CHECK(offset_of(large, first) == 4096);
  CHECK(offset_of(small, first) == 64);  // the gap is not lost
}

TEST_CASE("a growing slab is for the meta device") { CHECK_THROWS(make_device(DeviceKind::cpu, Pool::kGrowingSlab)); }

}  // namespace slab_test
