#include "runtime/device/pinned_memory.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "tests/device/test_devices.h"

namespace pinned_memory_test {

using namespace zs;
using namespace zs::test;

namespace {

constexpr std::int64_t kUploads = 1 << 12;

DeviceOptions with_locked(std::int64_t bytes) {
  DeviceOptions options;
  options.sync_timeout_s = 30;
  options.upload_bytes = kUploads;
  options.pinned_bytes = bytes;
  options.stands_for = DeviceKind::cuda;
  return options;
}

/// An op that asks for `used` bytes of the `declared` ones, and where they are.
void* locked_of(Stream& stream, std::int64_t declared, std::int64_t used) {
  void* address = nullptr;
  OpInfo info{"op", {}, {}};
  info.pinned_bytes = declared;
  stream.enqueue(std::move(info), [&address, used](ExecContext& exec) { address = exec.pinned(used); });
  stream.synchronize();
  return address;
}

/// Blocks that come and go, and what operations take: as much on every device.
void use(Device& device) {
  Stream &compute = device.stream(StreamRole::compute), &offload = device.stream(StreamRole::offload);
  PinnedMemory& pinned = device.pinned_memory();
  Memory first = pinned.acquire(5000, offload, "moments"), second = pinned.acquire(100, offload, "activation");
  locked_of(compute, 700, 700);
  first.reset();
  const Memory third = pinned.acquire((1 << 20) + 1, compute, "moments"),
               fourth = pinned.acquire(4000, offload, "activation");
  locked_of(compute, 9000, 9000);
  locked_of(offload, 64, 1);
}

}  // namespace

TEST_CASE(
    "page-locked memory is one allocation of the planned size, which the meta device finds out, and one more byte is "
    "another") {
  const std::int64_t short_of = GENERATE(0, 64);
  const auto meta = Device::create(DeviceKind::meta, with_locked(Pool::kGrowingSlab));
  use(*meta);
  const std::int64_t planned = meta->pinned_memory().counter().reserved_bytes();
  CHECK(planned > (1 << 20) + kUploads + 9000);
  EmulatedDriver driver;
  {
    CudaDevice device(with_locked(planned - short_of), driver.table());
    CHECK(driver.calls("cuMemHostAlloc") == 1);
    use(device);
    const MemoryCounter& counter = device.pinned_memory().counter();
    const int allocations = short_of == 0 ? 1 : 2;
    CHECK(driver.calls("cuMemHostAlloc") == allocations);
    CHECK(counter.allocation_calls() == allocations);
    CHECK((counter.reserved_bytes() == planned) == (short_of == 0));
    CHECK(counter.peak_bytes() == meta->pinned_memory().counter().peak_bytes());
    CHECK(counter.live_by_label() ==
          std::map<std::string, std::int64_t>{{"uploads", kUploads}, {"staging", 9024 + 64}});
    CHECK(device.memory().reserved_bytes() == ExecContext::kWorkspaceBytes);  // the GPU's own is not touched by it
    for (int i = 0; i < 3; ++i) use(device);
    CHECK(driver.calls("cuMemHostAlloc") == allocations);
  }
  CHECK(driver.live_handles() == 0);
}

TEST_CASE("without a plan page-locked memory is taken when it is needed, and kept") {
  EmulatedDriver driver;
  CudaDevice device(with_locked(0), driver.table());
  CHECK(device.pinned_memory().counter().reserved_bytes() == kUploads);
  Stream& stream = device.stream(StreamRole::offload);
  for (int i = 0; i < 3; ++i) const Memory memory = device.pinned_memory().acquire(1000, stream, "moments");
  CHECK(device.pinned_memory().counter().reserved_bytes() == kUploads + 1024);
  CHECK(driver.calls("cuMemHostAlloc") == 2);
}

TEST_CASE("an operation has as much locked memory as it declared, its stream's, and of no other one") {
  const auto device = TestDevice(GENERATE(DeviceKind::cpu, DeviceKind::cuda));
  Stream &compute = device->stream(StreamRole::compute), &reduce = device->stream(StreamRole::reduce);
  void *const small = locked_of(compute, 100, 100), *const other = locked_of(reduce, 256, 256);
  CHECK(small != other);
  void* const large = locked_of(compute, 1000, 1000);
  CHECK(locked_of(compute, 10, 10) == large);
  std::memset(large, 1, 1000);
  CHECK(reinterpret_cast<std::uintptr_t>(large) % 64 == 0);
  CHECK(device->pinned_memory().counter().live_by_label().at("staging") == 1024 + 256);
  CHECK_THROWS_WITH(locked_of(compute, 100, 101),
                    Catch::Contains("101 bytes of page-locked memory are used, 100 were declared"));
  CHECK_THROWS_WITH(locked_of(compute, 0, 1),
                    Catch::Contains("1 bytes of page-locked memory are used, 0 were declared"));
}

TEST_CASE("a block of locked memory that goes from stream to stream waits for its last use") {
  const auto device = Device::create(DeviceKind::meta, with_locked(Pool::kGrowingSlab));
  Stream &offload = device->stream(StreamRole::offload), &compute = device->stream(StreamRole::compute);
  device->trace().start();
  for (Stream* const stream : {&offload, &compute, &offload}) {
    const Memory memory = device->pinned_memory().acquire(1000, *stream, "moments");
    stream->enqueue({"use", {}, {memory.buffer(DType::u8, 1000)}}, [](ExecContext&) {});
  }
  std::vector<TraceEntry> trace = device->trace().entries();
  CHECK(verify_order(trace).empty());
  std::erase_if(trace, [](const TraceEntry& entry) { return entry.kind == TraceEntry::Kind::wait; });
  CHECK(verify_order(trace).size() == 2);
}

TEST_CASE("what operations have there is known to the order verifier") {
  const auto device = Device::create(DeviceKind::meta, with_locked(0));
  const auto enqueue = [&](StreamRole role, std::int64_t bytes) {
    OpInfo info{"op", {}, {}};
    info.pinned_bytes = bytes;
    device->stream(role).enqueue(std::move(info), [](ExecContext&) {});
  };
  device->trace().start();
  enqueue(StreamRole::compute, 128);
  enqueue(StreamRole::compute, 256);  // the first block goes back
  enqueue(StreamRole::reduce, 128);   // and comes out again
  std::vector<TraceEntry> trace = device->trace().entries();
  CHECK(verify_order(trace).empty());
  std::erase_if(trace, [](const TraceEntry& entry) { return entry.kind == TraceEntry::Kind::wait; });
  CHECK(verify_order(trace).size() == 1);
}

TEST_CASE("memory of the host that cannot be locked is one line, and nothing is left behind") {
  EmulatedDriver driver;
  driver.fail("cuMemHostAlloc", cuda_status::kOutOfMemory);
  try {
    const CudaDevice device(with_locked(1 << 20), driver.table());
    FAIL("a device without its memory");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::out_of_memory);
    CHECK_THAT(error.what(),
               Catch::StartsWith("cannot lock 1048576 bytes of the host's memory for the GPU (GPU 0 (Emulated))"));
  }
  CHECK(driver.live_handles() == 0);
}

}  // namespace pinned_memory_test
