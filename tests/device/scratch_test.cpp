#include <catch2/catch.hpp>
#include <cstring>

#include "runtime/device/cuda_context.h"
#include "runtime/device/device.h"
#include "tests/gpu/emulation/emulated_driver.h"

namespace scratch_test {

using namespace zs;

namespace {

std::unique_ptr<Device> make_device(DeviceKind kind) {
  DeviceOptions options;
  options.sync_timeout_s = 30;
  return Device::create(kind, options);
}

/// An op that asks for `used` bytes of the `declared` ones and keeps where they are.
void enqueue(Stream& stream, std::int64_t declared, std::int64_t used, void** where = nullptr) {
  stream.enqueue({"op", {}, {}, declared}, [used, where](ExecContext& exec) {
    void* const address = exec.scratch(used);
    if (where != nullptr) *where = address;
    if (used > 0) std::memset(address, 1, static_cast<std::size_t>(used));
  });
}

}  // namespace

TEST_CASE("a stream's scratch grows to the largest declared and then asks for nothing more") {
  auto device = make_device(GENERATE(DeviceKind::cpu, DeviceKind::meta));
  Stream& stream = device->stream(StreamRole::compute);
  const MemoryCounter& counter = device->memory();
  enqueue(stream, 0, 0);
  CHECK(counter.live_bytes() == 0);
  enqueue(stream, 100, 100);
  CHECK(counter.live_by_label() == std::map<std::string, std::int64_t>{{"scratch", 128}});
  enqueue(stream, 1000, 900);
  CHECK(counter.live_by_label() == std::map<std::string, std::int64_t>{{"scratch", 1024}});
  const std::int64_t calls = counter.allocation_calls();
  for (const std::int64_t bytes : {1, 1000, 64, 999}) enqueue(stream, bytes, bytes);
  CHECK(counter.live_bytes() == 1024);
  CHECK(counter.peak_bytes() == 1024);  // the small block went before the large one came
  CHECK(counter.allocation_calls() == calls);
  device->synchronize();
}

TEST_CASE("each stream has scratch of its own") {
  auto device = make_device(DeviceKind::cpu);
  void *compute = nullptr, *reduce = nullptr, *again = nullptr;
  enqueue(device->stream(StreamRole::compute), 256, 256, &compute);
  enqueue(device->stream(StreamRole::reduce), 256, 256, &reduce);
  enqueue(device->stream(StreamRole::compute), 64, 64, &again);
  device->synchronize();
  CHECK(compute != reduce);
  CHECK(again == compute);
  CHECK(reinterpret_cast<std::uintptr_t>(compute) % 64 == 0);
}

TEST_CASE("an op that uses more scratch than it declared is stopped") {
  auto device = make_device(DeviceKind::cpu);
  Stream& stream = device->stream(StreamRole::compute);
  enqueue(stream, 1000, 1000);
  enqueue(stream, 100, 101);
  CHECK_THROWS_WITH(stream.synchronize(), Catch::Contains("101 bytes of scratch are used, 100 were declared"));
  enqueue(stream, 0, 1);
  CHECK_THROWS_WITH(stream.synchronize(), Catch::Contains("1 bytes of scratch are used, 0 were declared"));
}

TEST_CASE("scratch that another stream's block becomes waits for its last use") {
  auto device = make_device(DeviceKind::meta);
  Stream &compute = device->stream(StreamRole::compute), &reduce = device->stream(StreamRole::reduce);
  device->trace().start();
  enqueue(compute, 128, 128);
  enqueue(compute, 256, 256);  // the first block goes back to the pool
  enqueue(reduce, 128, 128);   // and comes out of it
  std::vector<TraceEntry> trace = device->trace().entries();
  CHECK(device->memory().allocation_calls() == 2);
  CHECK(verify_order(trace).empty());
  std::erase_if(trace, [](const TraceEntry& entry) { return entry.kind == TraceEntry::Kind::wait; });
  CHECK(verify_order(trace).size() == 2);  // with the block's use and with its release
}

TEST_CASE("work that runs without a stream has as much scratch as it asks for") {
  ExecContext exec(1, nullptr);
  void* const small = exec.scratch(10);
  std::memset(small, 1, 10);
  void* const large = exec.scratch(100'000);
  std::memset(large, 1, 100'000);
  CHECK(reinterpret_cast<std::uintptr_t>(large) % 64 == 0);
  CHECK(exec.scratch(5) == large);
}

TEST_CASE("a GPU's kernel that runs without a stream has the GPU's memory that it was given, and never the host's") {
  test::EmulatedDriver driver;
  const CudaContext context(driver.table(), 0, false);
  context.make_current();
  ExecContext exec(1, nullptr, &context);
  CHECK_THROWS_WITH(exec.scratch(10), Catch::Contains("wants 10 bytes of working memory, and was given none"));
  CHECK_THROWS_WITH(exec.workspace(20), Catch::Contains("wants 20 bytes of working memory, and was given none"));
  const auto memory = make_cuda_allocator(context);
  const Buffer block{memory->allocate(256), 256, DType::u8, DeviceKind::cuda};
  exec.set_memory({.scratch = block.slice(0, 128), .pinned = {}}, block.slice(128, 128));
  CHECK(exec.scratch(100) == block.data);
  CHECK(exec.workspace(128) == static_cast<std::byte*>(block.data) + 128);
  CHECK_THROWS_WITH(exec.scratch(129), Catch::Contains("129 bytes of scratch are used, 128 were declared"));
  memory->deallocate(block.data, 256);
}

}  // namespace scratch_test
