#include "runtime/device/cpu_device.h"

#include <algorithm>

#include "runtime/device/device_end.h"

namespace zs {

CpuDevice::State::State(const DeviceOptions& options, Trace& trace, MemoryCounter& counter)
    : allocator(options.memory != nullptr ? *options.memory : *ordinary),
      pool(allocator, counter, options.perturb_seed != 0, options.slab_bytes),
      pinned(make_cpu_allocator(), options.pinned_bytes, options.perturb_seed != 0),
      group{.options = options, .trace = trace, .scratch = scratch, .pinned = pinned} {}

void CpuDevice::State::drop() noexcept {
  scratch.drop();
  pinned.staging().drop();
}

CpuDevice::CpuDevice(const DeviceOptions& options)
    : Device(options), state_(std::make_unique<State>(options, trace_, counter_)) {
  for (int role = 0; role < kStreamRoles; ++role) {
    state_->streams[role] = std::make_unique<CpuStream>(static_cast<StreamRole>(role), state_->group);
    state_->group.streams.push_back(state_->streams[role].get());
  }
}

CpuDevice::~CpuDevice() {
  trace_.stop();
  end_streams(state_, options_.sync_timeout_s);
}

bool CpuDevice::is_awaited() const {
  return std::any_of(state_->streams.begin(), state_->streams.end(),
                     [](const auto& stream) { return stream != nullptr && stream->is_awaited(); });
}

std::uint64_t CpuDevice::completed() const { return completed_of(state_->streams); }

Stream& CpuDevice::stream(StreamRole role) { return *state_->streams[static_cast<int>(role)]; }

}  // namespace zs
