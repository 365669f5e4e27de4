#include "tests/shard/gpu_ranks.h"

#include <algorithm>
#include <stdexcept>

#include "comm/nccl/nccl_library.h"
#include "comm/nccl/nccl_memory.h"
#include "model/train/plan/gpu_ranks.h"
#include "model/train/plan/plan.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/gpu/real_gpu.h"

namespace zs::test {
namespace {

constexpr double kTimeout_s = 120;

/// Before the ranks are: they are threads.
bool has_nccl_library() {
  set_nccl_environment();
  try {
    open_nccl_library(NcclOptions{}.library);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

Config small_config(int ranks) {
  Config config = tiny_config();
  config.model.layers = 2;
  config.model.width = 16;
  config.model.context = config.train.sequence = 8;
  config.train.global_batch = 2 * ranks;
  config.train.deterministic = false;
  config.shard.unit_mib = 0;  // over NCCL these blocks would all be one unit
  return config;
}

void choose_bf16(Config& config, const std::string& reduce) {
  config.precision.param = config.precision.output = config.precision.validation = "bf16";
  config.precision.reduce = reduce;
}

GpuMachine::GpuMachine(int ranks, std::uint64_t seed) : ranks_(ranks), gpus_(ranks) {
  if (is_on_real_gpu()) {
    gpus_ = static_cast<int>(cuda_gpus(*open_cuda_driver()).size());
    has_nccl_ = gpus_ >= ranks_ && has_nccl_library();
    return;
  }
  emulated_ = std::make_unique<EmulatedDriver>(
      EmulatedDriver::Options{.gpus = ranks, .seed = seed, .is_guarded = true, .kernels = emulated_kernels()});
  emulated_cublas_ = std::make_unique<EmulatedCublas>(*emulated_);
  fake_nccl_ = std::make_unique<FakeNccl>(*emulated_, seed);
}

GpuMachine::~GpuMachine() = default;

std::size_t GpuMachine::live_handles() const {
  if (emulated_ == nullptr) return 0;
  return emulated_->live_handles() + emulated_cublas_->live_handles() + static_cast<std::size_t>(fake_nccl_->live());
}

void GpuMachine::run(const Config& config, Transport transport, const Body& body) {
  run_local_world(ranks_, {.timeout_s = kTimeout_s}, [&](World& base) {
    const TrainPlan plan = make_plan(config, {.rank = base.rank(),
                                              .ranks = base.size(),
                                              .device = DeviceKind::cuda,
                                              .transport = transport,
                                              .sums_in_rank_order = config.train.deterministic});
    NcclOptions nccl = nccl_options(config);
    nccl.timeout_s = kTimeout_s;
    if (fake_nccl_) nccl.table = fake_nccl_->table();
    register_memory(nccl, config, transport);
    DeviceOptions options;
    options.memory = nccl.memory.get();
    options.sync_timeout_s = kTimeout_s;
    options.gpu = base.rank() % gpus_;
    options.shares_gpu = gpus_ < ranks_;
    options.times_products = config.cuda.tune_products;
    const auto device = plan.create_device(options, [&](DeviceKind, const DeviceOptions& planned) {
      if (!emulated_)
        return std::make_unique<CudaDevice>(planned, CudaContext::Libraries{open_cuda_driver(), open_cublas_lt()});
      const auto library = base.rank() > 0 && others_library_ ? others_library_ : emulated_cublas_->table();
      return std::make_unique<CudaDevice>(planned, CudaContext::Libraries{emulated_->table(), library});
    });
    const auto world = make_gpu_world(base, *device, transport, nccl);
    body(*world, static_cast<CudaDevice&>(*device), plan);
  });
}

TinyResult GpuMachine::train(const Config& config, Transport transport, const TinyOptions& options) {
  TinyResult first;
  run(config, transport, [&](World& world, CudaDevice& device, const TrainPlan& plan) {
    TinyResult result = train_tiny(world, device, &plan, config, options);
    for (const std::int64_t bytes : result.peak_bytes) {
      if (bytes != plan.step_peak_bytes)
        throw std::runtime_error(fmt::format("a step took {} bytes, planned were {}", bytes, plan.step_peak_bytes));
    }
    const MemoryCounter& locked = device.pinned_memory().counter();
    if (locked.reserved_bytes() != plan.pinned_bytes || locked.allocation_calls() != 1)
      throw std::runtime_error(fmt::format("{} bytes page-locked in {} allocations, planned were {} in one",
                                           locked.reserved_bytes(), locked.allocation_calls(), plan.pinned_bytes));
    if (world.rank() == 0) first = std::move(result);  // the only writer; read after every rank has ended
  });
  return first;
}

}  // namespace zs::test
