// GPU memory that NCCL allocates and has registered: ranks are threads, each with an emulated GPU, and an NCCL made for
// tests.
#include "comm/nccl/nccl_memory.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <functional>

#include "comm/gpu/gpu_world.h"
#include "kernels/kernels.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/fake_nccl.h"
#include "tests/gpu/emulation/kernels.h"

namespace nccl_memory_test {

using namespace zs;
using namespace zs::test;

namespace {

constexpr std::int64_t kSlabBytes = 1 << 20;
constexpr int kRanks = 2;

struct Machine {
  EmulatedDriver driver{{.gpus = kRanks, .kernels = emulated_kernels()}};
  FakeNccl nccl{driver, 1};

  using Body = std::function<void(World& world, CudaDevice& device)>;
  /// Each rank with a slab of NCCL's memory of that size.
  void run(const std::function<std::int64_t(int rank)>& slab_bytes, const Body& body) {
    run_local_world(kRanks, {20}, [&](World& base) {
      NcclOptions nccl_options{.timeout_s = 20, .arithmetic = GpuArithmetic::of(cuda_kernels()), .table = nccl.table()};
      nccl_options.memory = make_nccl_memory(nccl_options);
      DeviceOptions options = patient();
      options.gpu = base.rank();
      options.slab_bytes = slab_bytes(base.rank());
      options.memory = nccl_options.memory.get();
      CudaDevice device(options, driver.table());
      const auto world = make_nccl_world(base, device, nccl_options);
      body(*world, device);
    });
  }
};

/// Gathers on memory of the slab.
void gather(Communicator& comm, CudaDevice& device) {
  Stream& stream = device.stream(StreamRole::unshard);
  const Memory memory = device.pool().acquire(4096, stream, "full_param");
  const Buffer full = memory.buffer(DType::f32, 1024);
  comm.all_gather(stream, "unit", full.slice(comm.rank() * 512, 512), full);
  device.synchronize();
}

/// What each rank's world says it has registered, after two communicators and a gather.
std::vector<NcclRegistration> registered(Machine& machine, const std::function<std::int64_t(int rank)>& slab_bytes) {
  std::vector<NcclRegistration> found(kRanks);
  REQUIRE_NOTHROW(machine.run(slab_bytes, [&](World& world, CudaDevice& device) {
    const auto one = world.communicator(), two = world.communicator();
    gather(*one, device);
    found[static_cast<std::size_t>(world.rank())] = registration_of(world);
  }));
  CHECK(machine.nccl.registry().mistakes().empty());
  CHECK(machine.nccl.registry().blocks() == 0);
  CHECK(machine.driver.live_handles() == 0);
  return found;
}

std::int64_t all_alike(int) { return kSlabBytes; }

}  // namespace

TEST_CASE("a device's slab of NCCL's memory is registered with each communicator, and taken back before it goes") {
  Machine machine;
  for (const NcclRegistration& one : registered(machine, all_alike)) {
    CHECK(one.bytes == kSlabBytes);
    CHECK(one.communicators == 2);
    CHECK(one.refusal.empty());
  }
  CHECK(machine.nccl.calls("ncclCommRegister") == 2 * kRanks);
  CHECK(machine.nccl.calls("ncclCommDeregister") == 2 * kRanks);
  CHECK(machine.nccl.calls("ncclMemFree") == kRanks);
  CHECK(machine.nccl.registered().collectives == 1);
  CHECK(machine.nccl.registered().displaced == 0);
}

TEST_CASE("where one rank's memory is not registered, nobody's is") {
  Machine machine;
  const auto check = [&](const std::vector<NcclRegistration>& found, const std::string& refusal, int communicators) {
    for (const NcclRegistration& one : found) {
      CHECK(one.communicators == communicators);
      CHECK_THAT(one.refusal, Catch::Matches(refusal));
    }
  };
  SECTION("because NCCL refuses it once, and takes what comes later") {
    machine.nccl.fail("ncclCommRegister", 3);
    check(registered(machine, all_alike), "", 1);
    CHECK(machine.nccl.calls("ncclCommDeregister") == 2 * kRanks - 1);
    CHECK(machine.nccl.registered().collectives == 0);  // on the first
  }
  SECTION("because NCCL has no such memory for it") {
    machine.nccl.fail("ncclMemAlloc", 1);
    check(registered(machine, all_alike), "rank [01] has no memory of NCCL's", 0);
    CHECK(machine.nccl.registered().collectives == 0);
  }
  SECTION("because it has more") {
    check(registered(machine, [](int rank) { return kSlabBytes + rank * 4096; }),
          "rank 0 has 1048576 bytes, rank 1 has 1052672", 0);
    CHECK(machine.nccl.registered().collectives == 0);
  }
}

TEST_CASE("an NCCL before 2.19 registers nothing") {
  Machine machine;
  auto old = std::make_shared<NcclLibrary>(*machine.nccl.table());
  old->memory_allocate = nullptr;
  old->memory_free = nullptr;
  old->enroll = nullptr;
  old->discharge = nullptr;
  CHECK(make_nccl_memory({.table = old}) == nullptr);
  run_local_world(kRanks, {20}, [&](World& base) {
    DeviceOptions options = patient();
    options.gpu = base.rank();
    options.slab_bytes = kSlabBytes;
    CudaDevice device(options, machine.driver.table());
    const auto world = make_nccl_world(base, device, {.timeout_s = 20, .table = old});
    gather(*world->communicator(), device);
  });
  CHECK(machine.nccl.calls("ncclCommRegister") == 0);
  CHECK(machine.nccl.registered().collectives == 0);
}

TEST_CASE("a communicator that fails is aborted with its memory registered, which goes all the same") {
  Machine machine;
  std::atomic<int> failed{0};
  machine.run(all_alike, [&](World& world, CudaDevice& device) {
    const auto comm = world.communicator();
    Stream& stream = device.stream(StreamRole::unshard);
    const Memory memory = device.pool().acquire(4096, stream, "full_param");
    comm->all_reduce(stream, world.rank() == 0 ? "this" : "that", memory.buffer(DType::f32, 1024), ReduceOp::sum);
    try {
      stream.synchronize();
    } catch (const Error&) {
      ++failed;
    }
  });
  CHECK(failed == kRanks);
  CHECK(machine.nccl.calls("ncclCommAbort") == kRanks);
  CHECK(machine.nccl.registry().mistakes().empty());
  CHECK(machine.nccl.registry().blocks() == 0);
  CHECK(machine.driver.live_handles() == 0);
}

TEST_CASE("the NCCL for tests refuses what may not be done with registered memory") {
  EmulatedDriver driver;
  FakeRegistry registry(driver);
  const CudaContext context(driver.table(), 0, false);
  context.make_current();
  int of_one = 0, of_two = 0;
  const auto* const one = reinterpret_cast<const ncclComm*>(&of_one);
  const auto* const two = reinterpret_cast<const ncclComm*>(&of_two);
  void *memory = nullptr, *handle = nullptr;
  REQUIRE(registry.allocate(&memory, 1000) == nccl::kSuccess);
  REQUIRE(registry.enroll(one, memory, 1000, &handle) == nccl::kSuccess);
  CHECK(registry.place_of(one, static_cast<std::byte*>(memory) + 10) == 10);
  CHECK(registry.place_of(two, memory) == -1);
  CHECK(registry.enroll(two, memory, std::size_t{1} << 30, &handle) != nccl::kSuccess);
  CHECK(registry.enroll(two, &handle, 8, &handle) != nccl::kSuccess);
  CHECK(registry.give_back(memory) != nccl::kSuccess);
  CHECK(registry.discharge(two, handle) != nccl::kSuccess);
  CHECK(registry.discharge(one, handle) == nccl::kSuccess);
  CHECK(registry.discharge(one, handle) != nccl::kSuccess);
  REQUIRE(registry.enroll(two, memory, 1000, &handle) == nccl::kSuccess);
  CHECK(registry.end(two, false) != nccl::kSuccess);
  REQUIRE(registry.enroll(one, memory, 1000, &handle) == nccl::kSuccess);
  CHECK(registry.end(one, true) == nccl::kSuccess);
  CHECK(registry.give_back(memory) == nccl::kSuccess);
  CHECK(registry.give_back(memory) != nccl::kSuccess);
  CHECK(registry.mistakes().size() == 7);
  CHECK(driver.live_handles() == 1);  // the context
}

}  // namespace nccl_memory_test
