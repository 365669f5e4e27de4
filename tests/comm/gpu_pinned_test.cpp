// The page-locked memory of the host that transports over GPU buffers work in.
#include <catch2/catch.hpp>

#include <map>
#include <string>
#include <vector>

#include "comm/gpu/gpu_world.h"
#include "kernels/kernels.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/fake_nccl.h"
#include "tests/gpu/emulation/kernels.h"

namespace gpu_pinned_test {

using namespace zs;
using namespace zs::test;

namespace {

/// Every operation on some stream, some of them larger the second time; then what page-locked memory there is, by
/// label, and all of it.
std::map<std::string, std::int64_t> pinned_by_operations(World& world, Device& device, CommDType comm_dtype) {
  const auto gathers = world.communicator(), reduces = world.communicator(), others = world.communicator();
  Stream &unshard = device.stream(StreamRole::unshard), &reduce = device.stream(StreamRole::reduce),
         &compute = device.stream(StreamRole::compute);
  const Memory in_memory = device.pool().acquire(1 << 16, compute, "data"),
               out_memory = device.pool().acquire(1 << 16, compute, "data");
  device.synchronize();
  for (const std::int64_t n : {100, 1003, 7}) {
    const std::int64_t all = n * world.size();
    const Buffer in = in_memory.buffer(DType::f32, all), out = out_memory.buffer(DType::f32, all);
    gathers->all_gather(unshard, "unit", in.slice(0, n), out);
    reduces->reduce_scatter(reduce, "unit", in_memory.buffer(DType::bf16, all), out.slice(0, n), ReduceInto::overwrite,
                            comm_dtype);
    reduces->reduce_scatter(reduce, "unit", in, out.slice(0, n), ReduceInto::accumulate, comm_dtype);
    others->all_reduce(compute, "unit", in.slice(0, 2 * n), ReduceOp::sum);
    others->broadcast(compute, "unit", in.slice(0, n), 0);
    others->all_to_all(compute, "unit", in, out);
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(world.size()), n);
    others->all_to_all_v(compute, "unit", {in, counts}, {out, counts});
    others->barrier(compute, "unit");
  }
  if (device.kind() != DeviceKind::meta) device.synchronize();
  auto bytes = device.pinned_memory().counter().live_by_label();
  bytes["reserved"] = device.pinned_memory().counter().reserved_bytes();
  return bytes;
}

}  // namespace

TEST_CASE("the page-locked memory that operations between GPUs take is planned, taken at once, and all that is taken") {
  const bool over_nccl = GENERATE(false, true);
  const CommDType comm_dtype = GENERATE(CommDType::exact, CommDType::int8);
  const int ranks = GENERATE(2, 3);
  EmulatedDriver driver({.gpus = ranks, .kernels = emulated_kernels()});
  FakeNccl nccl(driver, 1);
  std::vector<std::map<std::string, std::int64_t>> planned(static_cast<std::size_t>(ranks)), taken(planned);
  run_local_world(ranks, {20}, [&](World& base) {
    const auto rank = static_cast<std::size_t>(base.rank());
    DeviceOptions options = patient();
    options.stands_for = DeviceKind::cuda;
    options.pinned_bytes = Pool::kGrowingSlab;
    const auto meta = Device::create(DeviceKind::meta, options);
    const TransportInfo transport_info{.transport = over_nccl ? Transport::nccl : Transport::staged};
    planned[rank] = pinned_by_operations(*make_meta_world(base.rank(), base.size(), transport_info), *meta, comm_dtype);
    options.gpu = base.rank();
    options.pinned_bytes = planned[rank].at("reserved");
    CudaDevice device(options, driver.table());
    const GpuArithmetic arithmetic = GpuArithmetic::of(cuda_kernels());
    const auto world =
        over_nccl ? make_nccl_world(base, device, {.timeout_s = 20, .arithmetic = arithmetic, .table = nccl.table()})
                  : make_staged_world(base, device, 20, arithmetic);
    for (int round = 0; round < 2; ++round) taken[rank] = pinned_by_operations(*world, device, comm_dtype);
  });
  CHECK(taken == planned);
  CHECK(driver.calls("cuMemHostAlloc") == ranks);
  CHECK(taken[0].contains("staging") == !over_nccl);
}

}  // namespace gpu_pinned_test
