#include "runtime/device/cuda_device.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace zs {
namespace {

constexpr double kStopAfterTimeoutS = 5;

}  // namespace

CudaDevice::State::State(const DeviceOptions& options, std::shared_ptr<const CudaDriver> driver, Trace& trace, MemoryCounter& counter)
    : context(std::move(driver), options.gpu, options.shares_gpu),
      pool(*allocator, counter, false, options.slab_bytes),
      group{.options = options, .trace = trace, .scratch = scratch, .context = context} {
  for (std::size_t role = 0; role < streams.size(); ++role) {
    streams[role] = std::make_unique<CudaStream>(static_cast<StreamRole>(role), group);
    group.streams.push_back(streams[role].get());
  }
}

CudaDevice::State::~State() {
  for (CudaEventRecord& record : group.events->records()) record.destroy(context);
}

CudaDevice::CudaDevice(const DeviceOptions& options, std::shared_ptr<const CudaDriver> driver) : Device(options) {
  ZS_CHECK(options.perturb_seed == 0, "delays and poisoned memory are for the CPU device, seed {}", options.perturb_seed);
  ZS_CHECK(options.memory == nullptr, "memory from elsewhere, for device cuda");
  state_ = std::make_unique<State>(options, std::move(driver), trace_, counter_);
}

CudaDevice::~CudaDevice() {
  trace_.stop();
  state_->scratch.drop();
  double limit_s = options_.sync_timeout_s;
  if (state_->group.timed_out) limit_s = std::min(limit_s, kStopAfterTimeoutS);
  bool all_ended = true;
  for (const auto& stream : state_->streams) all_ended = stream->stop(limit_s) && all_ended;
  if (all_ended) return;
  // The GPU may still write to this device's memory: it is never given back.
  [[maybe_unused]] const State* const left_behind = state_.release();
#if defined(__SANITIZE_ADDRESS__)
  __lsan_ignore_object(left_behind);
#endif
}

std::uint64_t CudaDevice::completed() const {
  std::uint64_t sum = 0;
  for (const auto& stream : state_->streams) sum += stream->completed();
  return sum;
}

}  // namespace zs
