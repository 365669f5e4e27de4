#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <string_view>

#include "kernels/cuda/image.h"
#include "kernels/kernels.h"
#include "runtime/device/cuda_device.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/skip.h"

namespace cuda_launch_test {

using namespace zs;
using namespace zs::test;

TEST_CASE("kernels run in their stream's order, with the compute stream's workspace") {
  EmulatedDriver driver({.seed = GENERATE(1, 2, 3), .kernels = emulated_kernels()});
  {
    CudaDevice device(patient(), driver.table());
    Stream& stream = device.stream(StreamRole::compute);
    const Memory values = device.pool().acquire(40000, stream, "activation"),
                 norm = device.pool().acquire(8, stream, "scalars");
    const Buffer in = values.buffer(DType::f32, 10000), out = norm.buffer(DType::f64, 1);
    float* const at = in.as<float>();
    const KernelTable& kernels = cuda_kernels();
    stream.enqueue({"fill", {}, {in}}, [&, at](ExecContext& exec) {
      driver.launch(exec.native_stream(), [at] { std::iota(at, at + 10000, 0.0f); });
    });
    stream.enqueue({"norm", {in}, {in, out}}, [&](ExecContext& exec) {
      kernels.zero(exec, out);
      kernels.scale(exec, in, in, 2.0f);
      kernels.squared_norm(exec, out, in);
    });
    CHECK(at[9999] != 19998.0f);
    device.synchronize();
    CHECK(at[9999] == 19998.0f);
    CHECK(*out.as<double>() == 4.0 * 9999.0 * 10000.0 * 19999.0 / 6.0);
    CHECK(driver.calls("cuModuleLoadData") == 1);
  }
  CHECK(driver.live_handles() == 0);
}

TEST_CASE("all kernels are loaded once for all streams, before the first work that a stream does") {
  EmulatedDriver driver({.kernels = emulated_kernels()});
  const auto kernels = static_cast<int>(emulated_kernels().size());
  {
    CudaDevice device(patient(), driver.table());
    Stream &compute = device.stream(StreamRole::compute), &reduce = device.stream(StreamRole::reduce);
    const Memory values = device.pool().acquire(4000, compute, "activation");
    const Buffer data = values.buffer(DType::f32, 1000);
    compute.enqueue({"zero", {}, {data}}, [&](ExecContext& exec) { cuda_kernels().zero(exec, data); });
    device.synchronize();
    CHECK(driver.calls("cuModuleGetFunction") == kernels);
    compute.enqueue({"scale", {data}, {data}},
                    [&](ExecContext& exec) { cuda_kernels().scale(exec, data, data, 2.0f); });
    device.synchronize();
    reduce.enqueue({"add", {data}, {data}}, [&](ExecContext& exec) { cuda_kernels().add(exec, data, data, data); });
    device.synchronize();
    CHECK(driver.calls("cuLaunchKernel") == 2);
    CHECK(driver.calls("cuModuleGetFunction") == kernels);
    CHECK(driver.calls("cuFuncLoad") == kernels);
    CHECK(driver.calls("cuModuleLoadData") == 1);
  }
  CHECK(driver.live_handles() == 0);
}

TEST_CASE("a unit's update is one launch, of up to 56 parameters") {
  EmulatedDriver driver({.kernels = emulated_kernels()});
  CudaDevice device(patient(), driver.table());
  Stream& stream = device.stream(StreamRole::compute);
  const Memory values = device.pool().acquire(4 * 60 * 16 * 4, stream, "moments"),
               scalars = device.pool().acquire(sizeof(StepScalars), stream, "scalars");
  const Buffer all = values.buffer(DType::f32, 4 * 60 * 16), step = scalars.buffer(DType::f32, 6);
  const auto count = GENERATE(0, 1, 12, 56, 57);
  std::vector<UpdateRange> ranges;
  for (int i = 0; i < count; ++i) {
    const auto part = [&](int which) { return all.slice((which * 60 + i) * 16, 16); };
    ranges.push_back({part(0), part(1), {}, part(2), part(3), step});
  }
  stream.enqueue({"adamw", {all, step}, {all}}, [&](ExecContext& exec) {
    cuda_kernels().zero(exec, all);
    cuda_kernels().zero(exec, step);
    cuda_kernels().update(exec, ranges, AdamWOptions{0.9f, 0.999f, 1e-8f});
  });
  device.synchronize();
  CHECK(driver.calls("cuLaunchKernel") == (count + 55) / 56);
}

TEST_CASE("what is uploaded may change at once, and what is downloaded is there after a wait") {
  EmulatedDriver driver({.is_guarded = true});
  {
    CudaDevice device(patient(), driver.table());
    Stream& stream = device.stream(StreamRole::compute);
    const Memory values = device.pool().acquire(4000, stream, "activation");
    const Buffer out = values.buffer(DType::i32, 1000);
    std::vector<std::int32_t> host(1000), back(1000);
    for (std::int32_t i = 0; i < 100; ++i) {
      std::iota(host.begin(), host.end(), i);
      stream.enqueue({"up", {}, {out}}, [&](ExecContext& exec) { cuda_kernels().upload(exec, out, host.data()); });
      std::fill(host.begin(), host.end(), -1);
      stream.enqueue({"down", {out}, {}}, [&](ExecContext& exec) { cuda_kernels().download(exec, back.data(), out); });
      if (i % 10 != 9) continue;
      device.synchronize();
      CHECK(back.front() == i);
      CHECK(back.back() == i + 999);
    }
    CHECK(driver.calls("cuEventCreate") < 25);  // events serve again
  }
  CHECK(driver.live_handles() == 0);
}

TEST_CASE("a launch that the driver refuses names the kernel and the op") {
  EmulatedDriver driver({.kernels = emulated_kernels()});
  CudaDevice device(patient(), driver.table());
  Stream& stream = device.stream(StreamRole::compute);
  const Memory values = device.pool().acquire(4000, stream, "activation");
  const Buffer in = values.buffer(DType::f32, 1000);
  driver.fail("cuLaunchKernel", 1);
  stream.enqueue({"residual:blocks.2", {in}, {in}}, [&](ExecContext& exec) { cuda_kernels().add(exec, in, in, in); });
  CHECK_THROWS_WITH(device.synchronize(), Catch::StartsWith("cuLaunchKernel: CUDA error 1") &&
                                              Catch::Contains("last enqueued: residual:blocks.2"));
}

namespace {

/// One head's attention, backward, on memory of its own.
void attend(CudaDevice& device, const AttentionDims& d) {
  Stream& stream = device.stream(StreamRole::compute);
  const std::int64_t elems = d.time * d.head_dim;
  const Memory memory = device.pool().acquire(16 * elems, stream, "activation"),
               rows = device.pool().acquire(4 * d.time, stream, "lse");
  const Buffer all = memory.buffer(DType::bf16, 8 * elems), qkv = all.slice(0, 3 * elems),
               dqkv = all.slice(3 * elems, 3 * elems), out = all.slice(6 * elems, elems),
               dout = all.slice(7 * elems, elems), lse = rows.buffer(DType::f32, d.time);
  stream.enqueue({"attention:blocks.1", {out, dout, qkv, lse}, {dqkv}, cuda_kernels().scratch.attention(1, d)},
                 [=](ExecContext& exec) { cuda_kernels().attention_backward(exec, dqkv, dout, out, qkv, lse, d); });
  device.synchronize();
}

}  // namespace

TEST_CASE("a kernel that needs more than 48 KiB of shared memory asks for it, once") {
  EmulatedDriver driver({.kernels = emulated_kernels()});
  CudaDevice device(patient(), driver.table());
  for (int i = 0; i < 3; ++i) attend(device, {1, 5, 1, 64});
  CHECK(driver.calls("cuFuncSetAttribute") == 2);
}

TEST_CASE("shared memory that a GPU refuses is an error that names the op") {
  EmulatedDriver driver({.kernels = emulated_kernels()});
  CudaDevice device(patient(), driver.table());
  driver.fail("cuFuncSetAttribute", 1);
  CHECK_THROWS_WITH(attend(device, {1, 5, 1, 128}), Catch::StartsWith("cuFuncSetAttribute: CUDA error 1") &&
                                                        Catch::Contains("last enqueued: attention:blocks.1"));
}

TEST_CASE("kernels that are not for this GPU are a configuration error that says how to build them") {
  EmulatedDriver driver({.kernels = emulated_kernels()});
  CudaDevice device(patient(), driver.table());
  Stream& stream = device.stream(StreamRole::compute);
  const Memory values = device.pool().acquire(4000, stream, "activation");
  const Buffer in = values.buffer(DType::f32, 1000);
  driver.fail("cuModuleLoadData", 209);
  stream.enqueue({"residual", {in}, {in}}, [&](ExecContext& exec) { cuda_kernels().add(exec, in, in, in); });
  try {
    device.synchronize();
    FAIL("kernels of another GPU ran");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::config);
    CHECK_THAT(error.what(), Catch::Contains("cuModuleLoadData: CUDA error 209") && Catch::Contains("-Dgpu_arch="));
  }
}

TEST_CASE("kernels that need the compute stream's workspace are refused on another") {
  EmulatedDriver driver({.kernels = emulated_kernels()});
  CudaDevice device(patient(), driver.table());
  Stream& stream = device.stream(StreamRole::reduce);
  const Memory values = device.pool().acquire(4000, stream, "activation");
  const Buffer in = values.buffer(DType::f32, 1000);
  stream.enqueue({"sum", {in}, {in}}, [&](ExecContext& exec) { cuda_kernels().sum(exec, in.slice(0, 1), in, 1.0f); });
  CHECK_THROWS_WITH(device.synchronize(), Catch::Contains("bytes of workspace, there are 0"));
}

TEST_CASE("a token outside the table ends the GPU's work with an error that names the op") {
  EmulatedDriver driver({.kernels = emulated_kernels()});
  CudaDevice device(patient(), driver.table());
  Stream& stream = device.stream(StreamRole::compute);
  const Memory values = device.pool().acquire(4000, stream, "activation"),
               tokens = device.pool().acquire(8, stream, "tokens");
  const Buffer table = values.buffer(DType::f32, 20), out = values.buffer(DType::f32, 1000).slice(100, 8),
               ids = tokens.buffer(DType::i32, 2);
  const std::int32_t token = GENERATE(5, -1);
  const bool is_forward = GENERATE(true, false);
  ids.as<std::int32_t>()[0] = 1;
  ids.as<std::int32_t>()[1] = token;
  stream.enqueue({"embedding", {table, ids}, {out}}, [&](ExecContext& exec) {
    if (is_forward) return cuda_kernels().embedding_forward(exec, out, ids, table, {}, 2);
    cuda_kernels().embedding_backward(exec, table, ids, out, 4, 0.0f, -1);
  });
  CHECK_THROWS_WITH(device.synchronize(),
                    Catch::Contains("CUDA error 719") && Catch::Contains("last enqueued: embedding"));
}

TEST_CASE("a target outside the classes ends the GPU's work") {
  EmulatedDriver driver({.kernels = emulated_kernels()});
  CudaDevice device(patient(), driver.table());
  Stream& stream = device.stream(StreamRole::compute);
  const Memory values = device.pool().acquire(4000, stream, "activation"),
               tokens = device.pool().acquire(8, stream, "tokens");
  const Buffer all = values.buffer(DType::f32, 1000), logits = all.slice(0, 8), losses = all.slice(16, 2),
               lse = all.slice(32, 2), dloss = all.slice(48, 1), targets = tokens.buffer(DType::i32, 2);
  const bool is_forward = GENERATE(true, false);
  targets.as<std::int32_t>()[0] = 2;
  targets.as<std::int32_t>()[1] = 3;
  stream.enqueue({"loss", {logits, targets}, {losses, lse}}, [&](ExecContext& exec) {
    if (is_forward) return cuda_kernels().cross_entropy_forward(exec, losses, lse, logits, targets, 3);
    cuda_kernels().cross_entropy_backward(exec, logits, logits, lse, targets, dloss, 3, 1.0f);
  });
  CHECK_THROWS_WITH(device.synchronize(), Catch::Contains("CUDA error 719"));
}

TEST_CASE("the image that the driver loads holds every kernel") {
  const auto image = cuda::kernel_image();
  if (image.empty()) {
    skip("this build has no CUDA kernels");
    return;
  }
  std::uint32_t magic = 0;
  std::memcpy(&magic, image.data(), sizeof(magic));
  CHECK(magic == 0xba55ed50);  // of a fatbin
  const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
  for (const auto& [name, kernel] : emulated_kernels()) {
    INFO(name);
    CHECK(text.find(".text." + name + std::string(1, '\0')) != text.npos);
  }
}

}  // namespace cuda_launch_test
