// What everything else on a GPU stands on, in one small program: the driver, memory, events, a kernel, an error. On
// emulated GPUs too.
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>

#include "kernels/kernels.h"
#include "runtime/device/cuda_device.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/gpu/real_gpu.h"

namespace smoke_test {

using namespace zs;
using namespace zs::test;

namespace {

class Gpu {
 public:
  Gpu() {
    DeviceOptions options;
    options.sync_timeout_s = 30;
    if (!is_on_real_gpu())
      driver_ = std::make_unique<EmulatedDriver>(EmulatedDriver::Options{.kernels = emulated_kernels()});
    device_.emplace(options, driver_ ? driver_->table() : open_cuda_driver());
    pinned_ = make_pinned_allocator(device_->context());
  }
  CudaDevice* operator->() { return &*device_; }
  Stream& stream(StreamRole role) { return device_->stream(role); }

  /// (n) f32 of this host that the GPU reaches.
  std::shared_ptr<float[]> host(std::int64_t n) {
    Allocator* const memory = pinned_.get();
    const std::int64_t bytes = n * size_of(DType::f32);
    return {static_cast<float*>(memory->allocate(bytes)), [=](float* address) { memory->deallocate(address, bytes); }};
  }

 private:
  std::unique_ptr<EmulatedDriver> driver_;
  std::optional<CudaDevice> device_;
  std::unique_ptr<Allocator> pinned_;
};

Buffer on_host(float* data, std::int64_t n) { return {data, n, DType::f32, DeviceKind::cuda}; }

}  // namespace

TEST_CASE("what is copied to a GPU comes back") {
  Gpu gpu;
  constexpr std::int64_t kElems = 1 << 20;
  const auto out = gpu.host(kElems), in = gpu.host(kElems);
  std::iota(out.get(), out.get() + kElems, 1.0f);
  std::memset(in.get(), 0, kElems * sizeof(float));
  Stream& stream = gpu.stream(StreamRole::compute);
  const Memory memory = gpu->pool().acquire(kElems * size_of(DType::f32), stream, "data");
  const Buffer data = memory.buffer(DType::f32, kElems);
  stream.enqueue({"there", {}, {data}},
                 [&](ExecContext& exec) { cuda_kernels().copy(exec, data, on_host(out.get(), kElems)); });
  stream.enqueue({"back", {data}, {}},
                 [&](ExecContext& exec) { cuda_kernels().copy(exec, on_host(in.get(), kElems), data); });
  stream.synchronize();
  CHECK(std::memcmp(in.get(), out.get(), kElems * sizeof(float)) == 0);
}

TEST_CASE("a stream of a GPU waits for an event of another") {
  Gpu gpu;
  constexpr std::int64_t kElems = 1 << 24;
  const auto in = gpu.host(kElems);
  Stream &writer = gpu.stream(StreamRole::unshard), &reader = gpu.stream(StreamRole::compute);
  const Memory memory = gpu->pool().acquire(kElems * size_of(DType::f32), writer, "data");
  const Buffer data = memory.buffer(DType::f32, kElems);
  Event written, read;
  for (int round = 1; round <= 20; ++round) {
    writer.wait(read);
    writer.enqueue({"write", {}, {data}}, [&](ExecContext& exec) {
      const int status = exec.gpu().driver().memory_set(
          reinterpret_cast<CudaDriver::Address>(data.data), static_cast<unsigned char>(round),
          static_cast<std::size_t>(data.bytes()), static_cast<CUstream_st*>(exec.native_stream()));
      exec.gpu().check(status, "cuMemsetD8Async");
    });
    writer.record(written);
    reader.wait(written);
    reader.enqueue({"read", {data}, {}},
                   [&](ExecContext& exec) { cuda_kernels().copy(exec, on_host(in.get(), kElems), data); });
    reader.record(read);
    reader.synchronize();
    const auto* const bytes = reinterpret_cast<const unsigned char*>(in.get());
    CHECK(std::count(bytes, bytes + kElems * 4, static_cast<unsigned char>(round)) == kElems * 4);
  }
  gpu->synchronize();
}

TEST_CASE("kernels run on a GPU in the order of their stream") {
  Gpu gpu;
  constexpr std::int64_t kElems = 10000;
  const auto values = gpu.host(kElems), norm = gpu.host(2);
  std::iota(values.get(), values.get() + kElems, 0.0f);
  const Buffer in = on_host(values.get(), kElems), out{norm.get(), 1, DType::f64, DeviceKind::cuda};
  gpu.stream(StreamRole::compute).enqueue({"norm", {in}, {in, out}}, [&](ExecContext& exec) {
    cuda_kernels().zero(exec, out);
    cuda_kernels().scale(exec, in, in, 2.0f);
    cuda_kernels().squared_norm(exec, out, in);
  });
  gpu->synchronize();
  CHECK(*out.as<double>() == 4.0 * 9999.0 * 10000.0 * 19999.0 / 6.0);
}

TEST_CASE("more memory than a GPU has is an error that says how much is free") {
  Gpu gpu;
  try {
    gpu->allocator().allocate(2 * gpu->gpu().memory_bytes);
    FAIL("allocated");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::out_of_memory);
    CHECK_THAT(error.what(), Catch::Contains("bytes of GPU memory: ") && Catch::Contains("are free"));
  }
}

// Last: a real GPU's context is lost for the rest of the process.
TEST_CASE("what a kernel finds wrong ends the GPU's work with an error that names the operation", "[trap]") {
  Gpu gpu;
  const auto values = gpu.host(64);
  const Buffer table = on_host(values.get(), 20), out = on_host(values.get() + 32, 8);
  auto* const ids = reinterpret_cast<std::int32_t*>(values.get() + 48);
  ids[0] = 1;
  ids[1] = 5;  // the table has five rows
  gpu.stream(StreamRole::compute).enqueue({"embedding", {table}, {out}}, [&](ExecContext& exec) {
    cuda_kernels().embedding_forward(exec, out, {ids, 2, DType::i32, DeviceKind::cuda}, table, {}, 2);
  });
  CHECK_THROWS_WITH(gpu->synchronize(),
                    Catch::Contains("CUDA error 719") && Catch::Contains("last enqueued: embedding"));
}

}  // namespace smoke_test
