#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <thread>
#include <tuple>

#include "runtime/device/device.h"

namespace pool_test {

using namespace zs;

namespace {

DeviceOptions patient(std::uint64_t perturb_seed = 0) {
  DeviceOptions options;
  options.sync_timeout_s = 30;
  options.perturb_seed = perturb_seed;
  return options;
}

struct Counts {
  std::int64_t live, peak, reserved, calls;
  std::map<std::string, std::int64_t> at_peak;
  bool operator==(const Counts&) const = default;
};

/// A step-like program: activations that overlap, gathers that move between streams.
Counts run_program(Device& device) {
  Pool& pool = device.pool();
  Stream &compute = device.stream(StreamRole::compute), &unshard = device.stream(StreamRole::unshard);
  std::vector<Memory> activations;
  for (int step = 0; step < 3; ++step) {
    for (int unit = 0; unit < 5; ++unit) {
      Memory full = pool.acquire(1000 + unit % 2, unshard, "full_param");
      activations.push_back(pool.acquire(3000 + 100 * unit, compute, "activation"));
      full.release(compute);
    }
    while (!activations.empty()) activations.pop_back();
  }
  Memory kept = pool.acquire(1, compute, "loss");
  device.synchronize();
  const MemoryCounter& counter = device.memory();
  return {counter.live_bytes(), counter.peak_bytes(), pool.reserved_bytes(), pool.allocation_calls(),
          counter.at_peak()};
}

std::size_t waits_in(const Trace& trace) {
  std::size_t waits = 0;
  for (const TraceEntry& entry : trace.entries()) waits += entry.kind == TraceEntry::Kind::wait;
  return waits;
}

}  // namespace

TEST_CASE("a block used again by another stream waits for its last use") {
  auto device = Device::create(DeviceKind::cpu, patient());
  Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute);
  std::promise<void> gate;
  float seen = 0, overwritten = 0;
  Memory first = device->pool().acquire(256, a, "first");
  const Buffer old = first.buffer(DType::f32, 64);
  a.enqueue({"use", {}, {old}}, [&, old](ExecContext&) {
    old.as<float>()[0] = 1;
    gate.get_future().wait();
    seen = old.as<float>()[0];  // 2 when the other stream did not wait
  });
  first.reset();
  Memory second = device->pool().acquire(256, b, "second");
  REQUIRE(second.address() == old.data);
  b.enqueue({"overwrite", {}, {old}}, [&, old](ExecContext&) { overwritten = old.as<float>()[0] = 2; });
  // Time for a stream that does not wait to run into the block; one that waits is not hurried by it.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  gate.set_value();
  device->synchronize();
  CHECK(seen == 1);
  CHECK(overwritten == 2);
}

TEST_CASE("a block released after another stream's use waits for that stream") {
  auto device = Device::create(DeviceKind::meta, {});
  Stream &unshard = device->stream(StreamRole::unshard), &compute = device->stream(StreamRole::compute);
  device->trace().start();
  Memory full = device->pool().acquire(256, unshard, "full");
  full.release(compute);
  Memory again = device->pool().acquire(256, unshard, "full");
  unshard.enqueue({"use", {}, {again.buffer(DType::u8, 256)}}, [](ExecContext&) {});
  std::vector<TraceEntry> entries = device->trace().entries();
  std::erase_if(entries, [](const TraceEntry& e) {
    return e.kind == TraceEntry::Kind::acquire || e.kind == TraceEntry::Kind::release;
  });
  REQUIRE(entries.size() == 3);
  CHECK(entries[0].kind == TraceEntry::Kind::record);
  CHECK(entries[0].stream == StreamRole::compute);
  CHECK(entries[1].kind == TraceEntry::Kind::wait);
  CHECK(entries[1].stream == StreamRole::unshard);
  CHECK(entries[1].record_id == entries[0].record_id);
}

TEST_CASE("a block used again by its own stream waits for nothing") {
  auto device = Device::create(DeviceKind::cpu, patient());
  device->trace().start();
  Stream& stream = device->stream(StreamRole::compute);
  for (int i = 0; i < 3; ++i) Memory block = device->pool().acquire(256, stream, "block");
  CHECK(waits_in(device->trace()) == 0);
  CHECK(device->pool().allocation_calls() == 1);
}

TEST_CASE("counted bytes of one program are the same on cpu and meta, perturbed or not") {
  const auto meta = Device::create(DeviceKind::meta, {});
  const Counts expected = run_program(*meta);
  // By hand: activations 3008, 3136, 3200, 3328, 3392 and one or two full blocks of 1024, all live in the last unit.
  CHECK(expected.peak == 3008 + 3136 + 3200 + 3328 + 3456 + 1024);
  CHECK(expected.at_peak.at("full_param") == 1024);
  CHECK(expected.live == 64);
  const auto cpu = Device::create(DeviceKind::cpu, patient());
  CHECK(run_program(*cpu) == expected);
  const auto perturbed = Device::create(DeviceKind::cpu, patient(5));
  CHECK(run_program(*perturbed) == expected);
}

TEST_CASE("a trace tells what was acquired and released, by whom, and what was live then") {
  auto device = Device::create(GENERATE(DeviceKind::cpu, DeviceKind::meta), patient());
  Stream &compute = device->stream(StreamRole::compute), &reduce = device->stream(StreamRole::reduce);
  const Memory before = device->pool().acquire(64, compute, "before");
  device->trace().start();
  Memory nobodys = device->pool().acquire(100, compute, "first");
  {
    const MemoryOwner owner(device->memory(), "blocks.3");
    Memory owned = device->pool().acquire(200, reduce, "second");
    owned.release(reduce);
  }
  nobodys.release(reduce);
  std::vector<TraceEntry> entries = device->trace().entries();
  std::erase_if(entries, [](const TraceEntry& e) {
    return e.kind != TraceEntry::Kind::acquire && e.kind != TraceEntry::Kind::release;
  });
  REQUIRE(entries.size() == 4);
  using Kind = TraceEntry::Kind;
  const std::array wanted = {std::tuple(Kind::acquire, StreamRole::compute, "first", 128, "", 64 + 128),
                             std::tuple(Kind::acquire, StreamRole::reduce, "second", 256, "blocks.3", 64 + 128 + 256),
                             std::tuple(Kind::release, StreamRole::reduce, "second", 256, "", 64 + 128),
                             std::tuple(Kind::release, StreamRole::reduce, "first", 128, "", 64)};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto& [kind, stream, label, bytes, owner, live] = wanted[i];
    CAPTURE(i);
    CHECK(entries[i].kind == kind);
    CHECK(entries[i].stream == stream);
    CHECK(entries[i].op.name == label);
    REQUIRE(entries[i].op.writes.size() == 1);
    CHECK(entries[i].op.writes[0].bytes() == bytes);
    CHECK(entries[i].owner == owner);
    CHECK(entries[i].live_bytes == live);
  }
  CHECK(entries[0].op.writes[0].data == entries[3].op.writes[0].data);
}

TEST_CASE("what pools take from their allocators is counted until they die") {
  auto device = Device::create(GENERATE(DeviceKind::cpu, DeviceKind::meta), patient());
  Stream& stream = device->stream(StreamRole::compute);
  const auto allocator = make_meta_allocator(3);
  {
    Pool other(*allocator, device->memory());
    Memory a = device->pool().acquire(100, stream, "a");
    a.reset();
    Memory b = device->pool().acquire(100, stream, "b"), c = other.acquire(64, stream, "c");
    CHECK(device->memory().reserved_bytes() == 128 + 64);
    CHECK(device->memory().allocation_calls() == 2);
    b.reset();
    Memory again = device->pool().acquire(128, stream, "again");
    CHECK(device->memory().allocation_calls() == 2);
  }
  CHECK(device->memory().reserved_bytes() == 128);
}

TEST_CASE("the counter explains the peak by label and can start anew") {
  MemoryCounter counter;
  counter.add("master", 100);
  counter.add("activation", 50);
  counter.add("activation", 25);
  counter.remove("activation", 75);
  counter.add("full_param", 60);
  CHECK(counter.live_bytes() == 160);
  CHECK(counter.peak_bytes() == 175);
  CHECK(counter.at_peak() == std::map<std::string, std::int64_t>{{"master", 100}, {"activation", 75}});
  CHECK(counter.live_by_label() == std::map<std::string, std::int64_t>{{"master", 100}, {"full_param", 60}});
  counter.reset_peak();
  CHECK(counter.peak_bytes() == 160);
  CHECK(counter.at_peak() == counter.live_by_label());
  counter.mark();
  counter.add("activation", 30);
  counter.remove("activation", 30);
  counter.reset_peak();
  CHECK(counter.peak_since_mark() == 190);
  CHECK_THROWS_WITH(counter.remove("full_param", 61),
                    Catch::Contains("61 bytes of 'full_param' given back, 60 are live"));
}

TEST_CASE("adopted memory is counted, but neither poisoned nor handed out") {
  auto device = Device::create(DeviceKind::cpu, patient(1));
  Stream& stream = device->stream(StreamRole::compute);
  alignas(64) std::array<float, 32> shared{};
  const MemoryCounter& counter = device->memory();
  {
    const Memory own = device->pool().adopt(shared.data(), sizeof shared, stream, "master");
    CHECK(own.address() == shared.data());
    CHECK(counter.live_by_label() == std::map<std::string, std::int64_t>{{"master", 128}});
    CHECK(counter.reserved_bytes() == 128);
    CHECK(counter.adopted_bytes() == 128);
    CHECK(counter.allocation_calls() == 0);
  }
  const Memory next = device->pool().acquire(sizeof shared, stream, "next");
  device->synchronize();
  CHECK(next.address() != shared.data());
  CHECK(std::all_of(shared.begin(), shared.end(), [](float value) { return value == 0; }));
  CHECK(counter.reserved_bytes() == 128);
  CHECK(counter.adopted_bytes() == 0);
}

TEST_CASE("zero bytes give a valid block that counts nothing") {
  auto device = Device::create(GENERATE(DeviceKind::cpu, DeviceKind::meta), patient());
  Memory empty = device->pool().acquire(0, device->stream(StreamRole::compute), "empty");
  CHECK(bool(empty));
  CHECK(empty.buffer(DType::f32, 0).data != nullptr);
  CHECK(device->memory().live_bytes() == 0);
  CHECK_THROWS(empty.buffer(DType::f32, 1));
  empty.reset();
  CHECK_FALSE(bool(empty));
  CHECK(device->pool().allocation_calls() == 0);
}

TEST_CASE("moving memory moves the block, and the target's old block goes back") {
  auto device = Device::create(DeviceKind::cpu, patient());
  Stream& stream = device->stream(StreamRole::compute);
  Memory a = device->pool().acquire(100, stream, "a"), b = device->pool().acquire(200, stream, "b");
  void* const address = a.address();
  b = std::move(a);
  CHECK_FALSE(bool(a));
  CHECK(b.address() == address);
  CHECK(b.bytes() == 100);
  CHECK(device->memory().live_by_label() == std::map<std::string, std::int64_t>{{"a", 128}});
}

TEST_CASE("with perturbation new and released blocks are poisoned, in stream order") {
  auto device = Device::create(DeviceKind::cpu, patient(9));
  Stream& stream = device->stream(StreamRole::compute);
  Memory block = device->pool().acquire(4 * 40, stream, "block");
  const Buffer values = block.buffer(DType::f32, 40);
  bool was_new_poisoned = true, was_kept = false;
  stream.enqueue({"use", {}, {values}}, [&, values](ExecContext&) {
    for (int i = 0; i < 40; ++i) was_new_poisoned = was_new_poisoned && std::isnan(values.as<float>()[i]);
    std::fill_n(values.as<float>(), 40, 3.f);
  });
  stream.enqueue({"read", {values}, {}}, [&, values](ExecContext&) { was_kept = values.as<float>()[39] == 3.f; });
  block.reset();
  device->synchronize();
  CHECK(was_new_poisoned);
  CHECK(was_kept);
  for (int i = 0; i < 40; ++i) CHECK(std::isnan(values.as<float>()[i]));
}

TEST_CASE("without perturbation a released block keeps its bytes") {
  auto device = Device::create(DeviceKind::cpu, patient());
  Stream& stream = device->stream(StreamRole::compute);
  Memory block = device->pool().acquire(64, stream, "block");
  const Buffer values = block.buffer(DType::f32, 16);
  stream.enqueue({"use", {}, {values}}, [values](ExecContext&) { values.as<float>()[0] = 3; });
  block.reset();
  device->synchronize();
  CHECK(values.as<float>()[0] == 3);
}

TEST_CASE("addresses are aligned, and large ones to pages") {
  const auto allocator = GENERATE(0, 1) == 0 ? make_cpu_allocator() : make_meta_allocator();
  for (const std::int64_t bytes :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{65}, std::int64_t{1} << 20, std::int64_t{5} << 20}) {
    void* const address = allocator->allocate(bytes);
    const bool is_page = bytes >= 1 << 20 && allocator->device() == DeviceKind::cpu;
    CHECK(reinterpret_cast<std::uintptr_t>(address) % (is_page ? 4096 : 64) == 0);
    allocator->deallocate(address, bytes);
  }
}

TEST_CASE("meta addresses are never handed out twice, also between ranges") {
  const auto a = make_meta_allocator(0), b = make_meta_allocator(1);
  const auto number = [](void* address) { return reinterpret_cast<std::uintptr_t>(address); };
  const auto first = number(a->allocate(100));
  a->deallocate(reinterpret_cast<void*>(first), 100);
  CHECK(number(a->allocate(100)) == first + 128);
  CHECK(number(b->allocate(1)) - first >= std::uintptr_t{1} << 44);
}

TEST_CASE("an allocation that cannot be made names its size") {
  const auto allocator = make_cpu_allocator();
  try {
    allocator->allocate(std::int64_t{1} << 60);
    FAIL("allocated");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::out_of_memory);
    CHECK_THAT(error.what(), Catch::Contains("1152921504606846976 bytes"));
  }
}

TEST_CASE("a failed acquire counts nothing") {
  auto device = Device::create(DeviceKind::cpu, patient());
  CHECK_THROWS(device->pool().acquire(std::int64_t{1} << 60, device->stream(StreamRole::compute), "huge"));
  CHECK(device->memory().live_bytes() == 0);
  CHECK(device->pool().reserved_bytes() == 0);
}

}  // namespace pool_test
