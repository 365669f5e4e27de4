#include "runtime/device/cpu_device.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace zs {
namespace {

constexpr double kStopAfterTimeoutS = 5;

}  // namespace

CpuDevice::State::State(const DeviceOptions& options, Trace& trace, MemoryCounter& counter)
    : allocator(options.memory != nullptr ? *options.memory : *ordinary),
      pool(allocator, counter, options.perturb_seed != 0, options.slab_bytes),
      group{.options = options, .trace = trace, .scratch = scratch} {}

CpuDevice::CpuDevice(const DeviceOptions& options) : Device(options), state_(std::make_unique<State>(options, trace_, counter_)) {
  for (int role = 0; role < kStreamRoles; ++role) {
    state_->streams[role] = std::make_unique<CpuStream>(static_cast<StreamRole>(role), state_->group);
    state_->group.streams.push_back(state_->streams[role].get());
  }
}

CpuDevice::~CpuDevice() {
  trace_.stop();
  state_->scratch.drop();
  // After a timeout somebody is known to hang: wait only for those that a poisoned group lets go.
  double limit_s = options_.sync_timeout_s;
  if (state_->group.timed_out) limit_s = std::min(limit_s, kStopAfterTimeoutS);
  bool all_ended = true;
  for (const auto& stream : state_->streams) all_ended = stream->stop(limit_s) && all_ended;
  // The threads left behind may still write to this device's memory: it is never given back.
  if (all_ended) return;
  [[maybe_unused]] const State* const left_behind = state_.release();
#if defined(__SANITIZE_ADDRESS__)
  __lsan_ignore_object(left_behind);
#endif
}

std::uint64_t CpuDevice::completed() const {
  std::uint64_t sum = 0;
  for (const auto& stream : state_->streams) sum += stream->completed();
  return sum;
}

Stream& CpuDevice::stream(StreamRole role) { return *state_->streams[static_cast<int>(role)]; }

}  // namespace zs
