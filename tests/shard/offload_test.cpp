// Tensors go to the host's page-locked memory and come back, on a stream of their own.
#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/device/cuda_device.h"
#include "runtime/shard/offload/host_link.h"
#include "runtime/tensor/context.h"
#include "runtime/tensor/host_view.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/spoiled_file.h"

namespace offload_test {

using namespace zs;
using namespace zs::test;

namespace {

constexpr std::int64_t kElems = 3000, kBytes = kElems * 4;

DeviceOptions patient(double timeout_s = 30) {
  DeviceOptions options;
  options.sync_timeout_s = timeout_s;
  options.upload_bytes = 1 << 16;
  options.pinned_bytes = 1 << 20;
  return options;
}

/// A CPU device, or an emulated GPU whose memory the host cannot touch.
struct OneDevice {
  OneDevice(DeviceKind kind, std::uint64_t seed, double timeout_s = 30)
      : driver({.seed = seed, .is_guarded = true, .kernels = emulated_kernels()}) {
    if (kind == DeviceKind::cuda)
      device = std::make_unique<CudaDevice>(patient(timeout_s), CudaContext::Libraries{driver.table(), cublas.table()});
    else
      device = Device::create(kind, patient(timeout_s));
  }
  EmulatedDriver driver;
  EmulatedCublas cublas{driver};
  std::unique_ptr<Device> device;
};

std::vector<std::int32_t> values_of(int round) {
  std::vector<std::int32_t> values(kElems);
  std::iota(values.begin(), values.end(), round * 100'000);
  return values;
}

void copy(const Context& context, Stream& stream, const std::string& name, const Buffer& out, const Buffer& in) {
  stream.enqueue({name, {in}, {out}},
                 [&kernels = context.kernels(), out, in](ExecContext& exec) { kernels.copy(exec, out, in); });
}

std::vector<std::int32_t> read(const Context& context, const Buffer& buffer) {
  const HostView view(context, context.stream(), buffer);
  return {view.as<std::int32_t>(), view.as<std::int32_t>() + buffer.elems};
}

/// What compute writes goes down while compute goes on in the same memory, and comes up again into other memory.
void move_down_and_up(Context& context, const Buffer& work, const Buffer& back, const Buffer& host, int round) {
  Stream &compute = context.stream(), &offload = context.device().stream(StreamRole::offload);
  Event written, is_down, is_up, read;
  compute.record(read);  // `back`, in the round before
  context.launch({"write", {}, {work}}, upload_of(context.kernels(), work, values_of(round)));
  compute.record(written);
  offload.wait(written);
  copy(context, offload, "offload", host, work);
  offload.record(is_down);
  compute.wait(is_down);
  context.launch({"write", {}, {work}}, upload_of(context.kernels(), work, values_of(-1)));
  offload.wait(read);
  copy(context, offload, "reload", back, host);
  offload.record(is_up);
  compute.wait(is_up);
}

}  // namespace

TEST_CASE(
    "what is moved to the host's memory and back is what it was, in the order of the streams alone, and allocates "
    "nothing") {
  const DeviceKind kind = GENERATE(DeviceKind::cpu, DeviceKind::cuda);
  OneDevice one(kind, GENERATE(1, 2, 3, 4, 5));
  Context context(*one.device);
  Stream &compute = context.stream(), &offload = one.device->stream(StreamRole::offload);
  const Memory work = context.pool().acquire(kBytes, compute, "activation"),
               back = context.pool().acquire(kBytes, compute, "activation");
  one.device->trace().start();
  for (int round = 0; round < 5; ++round) {
    const Memory host = one.device->pinned_memory().acquire(kBytes, offload, "moments");
    const Buffer from = work.buffer(DType::i32, kElems), to = back.buffer(DType::i32, kElems),
                 there = host.buffer(DType::i32, kElems);
    CHECK(there.device == DeviceKind::cpu);
    move_down_and_up(context, from, to, there, round);
    const std::vector<std::int32_t> returned = read(context, to);
    CHECK(returned == values_of(round));
    CHECK(std::equal(returned.begin(), returned.end(),
                     there.as<std::int32_t>()));  // the host may look, now that it has waited
  }
  CHECK(verify_order(one.device->trace().entries()).empty());
  CHECK(one.device->pinned_memory().counter().allocation_calls() == 1);
  if (kind == DeviceKind::cuda) CHECK(one.driver.calls("cuMemHostAlloc") == 1);
}

TEST_CASE(
    "the host looks at what fits through the page-locked memory that a stream has, and at more when the stream is "
    "empty") {
  constexpr std::int64_t kStaging = 1 << 10;
  const std::int64_t elems = GENERATE(kStaging / 4, kStaging / 4 + 1);
  const bool fits = 4 * elems <= kStaging;
  OneDevice one(DeviceKind::cuda, 1, 0.2);
  Context context(*one.device);
  one.device->pinned_memory().staging().reserve(context.stream(), kStaging);
  const Memory memory = context.pool().acquire(kBytes, context.stream(), "activation");
  const Buffer all = memory.buffer(DType::i32, kElems), part = all.slice(0, elems);
  context.launch({"write", {}, {all}}, upload_of(context.kernels(), all, values_of(7)));
  const std::vector<std::int32_t> expected = values_of(7);
  CHECK(read(context, part) == std::vector<std::int32_t>(expected.begin(), expected.begin() + elems));

  // A GPU that stands still: the copy that may wait within the driver has not been asked for when the deadline comes.
  context.launch({"zero", {}, {all}},
                 [&kernels = context.kernels(), all](ExecContext& exec) { kernels.zero(exec, all); });
  const int before = one.driver.calls("cuMemcpyAsync");
  one.driver.stand_still(true);
  CHECK_THROWS_WITH(read(context, part), Catch::Contains("did not finish within 0.2 s") && Catch::Contains("download"));
  CHECK(one.driver.calls("cuMemcpyAsync") == before + (fits ? 1 : 0));
  one.driver.stand_still(false);
  CHECK(read(context, part) == std::vector<std::int32_t>(static_cast<std::size_t>(elems), 0));
  CHECK(one.driver.calls("cuMemHostAlloc") == 1);
}

TEST_CASE("a disk that fails beside a GPU is noticed by whoever uses what the GPU has made of it") {
  const DeviceKind kind = GENERATE(DeviceKind::cpu, DeviceKind::cuda);
  OneDevice one(kind, 1);
  const TempDir dir;
  Context context(*one.device);
  HostLink link(context, 0);
  const Memory home = link.acquire(2 * kBytes, "moments", dir / "state");
  const std::vector<Buffer> kept = {home.buffer(DType::i32, kElems)};
  HostLink::Window window = link.open("a unit", kept);
  context.launch({"write", {}, {window[0]}}, upload_of(context.kernels(), window[0], values_of(1)));
  link.store(std::move(window));
  one.device->synchronize();
  window = link.load("a unit", kept);
  context.stream().wait(window.arrived);
  CHECK(read(context, window[0]) == values_of(1));
  HostLink::drop(std::move(window), context.stream());
  link.check();
  spoil_file_of(dir / "state", "shortened");
  window = link.load("a unit", kept);
  context.stream().wait(window.arrived);
  const auto use = [&] {
    context.stream().synchronize();
    link.check();
  };
  CHECK_THROWS_WITH(use(), Catch::Contains("the file has become shorter"));
  HostLink::drop(std::move(window), context.stream());
  try {
    one.device->synchronize();
  } catch (const Error&) {  // of the other streams, on the CPU
  }
}

}  // namespace offload_test
