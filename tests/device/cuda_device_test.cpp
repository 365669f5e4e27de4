#include "runtime/device/cuda_device.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>

#include "tests/device/test_devices.h"
#include "tests/message_of.h"

namespace cuda_device_test {

using namespace zs;
using namespace zs::test;

namespace {

/// Something of everything that a device does.
void use(Device& device) {
  Event event;
  for (int role = 0; role < kStreamRoles; ++role) {
    Stream& stream = device.stream(static_cast<StreamRole>(role));
    const Memory memory = device.pool().acquire(1000, stream, "activation");
    stream.wait(event);
    stream.enqueue({"op", {}, {memory.buffer(DType::u8, 1000)}, 64}, [](ExecContext&) {});
    stream.record(event);
  }
  device.synchronize();
}

}  // namespace

TEST_CASE("a CUDA device gives back all that it took from the driver") {
  EmulatedDriver driver;
  {
    CudaDevice device(patient(), driver.table());
    use(device);
    CHECK(driver.live_handles() > 0);
  }
  CHECK(driver.live_handles() == 0);
}

TEST_CASE("every function of the driver that fails is an error that names it, and nothing is lost") {
  std::set<std::string> functions;
  {
    EmulatedDriver driver;
    {
      CudaDevice device(patient(), driver.table());
      use(device);
    }
    functions = driver.functions_called();
  }
  CHECK(functions.size() > 15);
  for (const std::string& function : functions) {
    // Those that give back have nobody to tell; they write a line.
    if (function.find("Destroy") != function.npos || function.find("Release") != function.npos ||
        function.starts_with("cuMemFree"))
      continue;
    EmulatedDriver driver;
    driver.fail(function, 999);
    INFO(function);
    CHECK_THAT(message_of([&] {
                 CudaDevice device(patient(), driver.table());
                 use(device);
               }),
               Catch::StartsWith(function + ": CUDA error 999, a made-up error (") && Catch::Contains("GPU"));
  }
}

TEST_CASE("a device whose GPU is lost can be destroyed") {
  EmulatedDriver driver;
  {
    CudaDevice device(patient(), driver.table());
    use(device);
    driver.fail("cuStreamQuery", 719);
    CHECK_THROWS_WITH(device.synchronize(),
                      Catch::Contains("CUDA error 719") && Catch::EndsWith("the GPU's work is lost; start again"));
  }
  CHECK(driver.calls("cuDevicePrimaryCtxRelease") == 1);
}

TEST_CASE("the planned memory is one allocation, and a step makes none") {
  EmulatedDriver driver;
  DeviceOptions options = patient();
  options.slab_bytes = 1 << 24;
  CudaDevice device(options, driver.table());
  CHECK(device.pool().device() == DeviceKind::cuda);
  for (int i = 0; i < 3; ++i) use(device);
  CHECK(driver.calls("cuMemAlloc") == 1);
  CHECK(device.memory().allocation_calls() == 1);
  const Memory memory = device.pool().acquire(100, device.stream(StreamRole::compute), "activation");
  CHECK(memory.buffer(DType::f32, 25).device == DeviceKind::cuda);
}

TEST_CASE("a slab comes from where it is asked for, if there is one to be had, and nothing else does") {
  const bool has_memory = GENERATE(true, false);
  struct Elsewhere final : Allocator {
    explicit Elsewhere(bool has) : has_memory(has) {}
    DeviceKind device() const override { return DeviceKind::cuda; }
    void* allocate(std::int64_t bytes) override {
      if (!has_memory) throw Error(ExitCode::out_of_memory, "none left");
      taken += bytes;
      return memory->allocate(bytes);
    }
    void deallocate(void* address, std::int64_t bytes) noexcept override {
      taken -= bytes;
      memory->deallocate(address, bytes);
    }
    const bool has_memory;
    std::int64_t taken = 0;
    std::unique_ptr<Allocator> memory = make_cpu_allocator();
  } elsewhere(has_memory);
  EmulatedDriver driver;
  DeviceOptions options = patient();
  options.slab_bytes = 1 << 20;
  options.memory = &elsewhere;
  {
    CudaDevice device(options, driver.table());
    CHECK(elsewhere.taken == (has_memory ? 1 << 20 : 0));
    CHECK(driver.calls("cuMemAlloc") == (has_memory ? 0 : 1));
    void* const more = device.allocator().allocate(1 << 21);
    CHECK(driver.calls("cuMemAlloc") == (has_memory ? 1 : 2));
    device.allocator().deallocate(more, 1 << 21);
    use(device);
  }
  CHECK(elsewhere.taken == 0);
  CHECK(driver.live_handles() == 0);
}

TEST_CASE("more memory than a GPU has is one line with what it has") {
  EmulatedDriver driver({.memory_bytes = 1 << 20});
  CudaDevice device(patient(), driver.table());
  const Memory held = device.pool().acquire(1 << 19, device.stream(StreamRole::compute), "activation");
  try {
    device.allocator().allocate(1 << 20);
    FAIL("allocated");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::out_of_memory);
    CHECK_THAT(error.what(),
               Catch::StartsWith(
                   "cannot allocate 1048576 bytes of GPU memory: 524288 of 1048576 are free (GPU 0 (Emulated)): "));
  }
}

TEST_CASE("two devices on one GPU are refused unless they say that they share it") {
  EmulatedDriver driver({.gpus = 2});
  DeviceOptions options = patient();
  std::optional<CudaDevice> first(std::in_place, options, driver.table());
  try {
    const CudaDevice second(options, driver.table());
    FAIL("two devices on one GPU");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::config);
    CHECK_THAT(error.what(), Catch::StartsWith("another rank on this host has this GPU (GPU 0 (Emulated)): "));
  }
  options.shares_gpu = true;
  CHECK_NOTHROW(CudaDevice(options, driver.table()));
  options = patient();
  options.gpu = 1;
  CHECK_NOTHROW(CudaDevice(options, driver.table()));
  first.reset();
  CHECK_NOTHROW(CudaDevice(patient(), driver.table()));
}

TEST_CASE("a GPU that is not there is refused with the number of those that are") {
  EmulatedDriver driver({.gpus = 2});
  DeviceOptions options = patient();
  options.gpu = GENERATE(2, -1);
  CHECK_THROWS_WITH(CudaDevice(options, driver.table()),
                    Catch::StartsWith(fmt::format("there is no GPU {}: the driver shows 2", options.gpu)));
}

TEST_CASE("the GPUs of a driver are listed with what is known of them") {
  EmulatedDriver driver({.gpus = 3, .memory_bytes = 1 << 20});
  const std::vector<CudaGpu> gpus = cuda_gpus(*driver.table());
  REQUIRE(gpus.size() == 3);
  CHECK(gpus[2].describe() == "GPU 2 (Emulated)");
  CHECK(gpus[1].uuid.size() == 32);
  CHECK(gpus[1].uuid != gpus[2].uuid);
  CHECK(gpus[0].major == 9);
  CHECK(gpus[0].memory_bytes == 1 << 20);
}

TEST_CASE("a machine without a driver, or with one that lacks a function, is told in one line") {
  const auto error_of = [](const char* library) {
    try {
      open_cuda_driver(library);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::config);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(error_of("libno-such-driver.so.1"), Catch::StartsWith("no NVIDIA driver here (libno-such-driver.so.1: ") &&
                                                     Catch::EndsWith("): use device \"cpu\""));
  CHECK_THAT(error_of("libm.so.6"), Catch::StartsWith("the NVIDIA driver is too old: it has no cuInit (libm.so.6): "));
}

TEST_CASE("the limit of a GPU's memory is what is free of it") {
  EmulatedDriver driver({.memory_bytes = 10000});
  const CudaContext context(driver.table(), 0, false);
  const auto memory = make_cuda_allocator(context);
  void* const taken = memory->allocate(3000);
  const MemoryLimit limit = cuda_memory_limit(context);
  CHECK(limit.bytes == 7000);
  CHECK(limit.source == "free memory of GPU 0 (Emulated)");
  CHECK(limit.is_per_process);
  memory->deallocate(taken, 3000);
}

TEST_CASE("the memory of an emulated GPU can be kept from the host, which is found when it touches it") {
  EmulatedDriver driver({.is_guarded = true});
  CudaDevice device(patient(), driver.table());
  Stream& stream = device.stream(StreamRole::compute);
  const Memory memory = device.pool().acquire(100, stream, "activation");
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const auto can_read = [&] {
    return write(ends[1], memory.address(), 1) == 1;
  };  // no signal, unlike the host's own look
  bool could_gpu = false;
  stream.enqueue({"op", {}, {memory.buffer(DType::u8, 100)}},
                 [&](ExecContext& exec) { driver.launch(exec.native_stream(), [&] { could_gpu = can_read(); }); });
  device.synchronize();
  CHECK(could_gpu);
  CHECK(!can_read());
  CHECK(errno == EFAULT);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("delays and poisoned memory are refused on a GPU") {
  EmulatedDriver driver;
  DeviceOptions options = patient();
  options.perturb_seed = 1;
  CHECK_THROWS_WITH(CudaDevice(options, driver.table()), Catch::Contains("for the CPU device"));
}

}  // namespace cuda_device_test
