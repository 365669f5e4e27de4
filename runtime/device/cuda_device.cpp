#include "runtime/device/cuda_device.h"

#include "runtime/device/device_end.h"

namespace zs {

CudaDevice::State::State(const DeviceOptions& options, CudaContext::Libraries libraries, Trace& trace,
                         MemoryCounter& counter, Profile& profile)
    : context(std::move(libraries), options.gpu, options.shares_gpu,
              {.tf32 = options.tf32, .fuses_gelu = options.fuses_gelu, .are_timed = options.times_products}),
      pinned(make_pinned_allocator(context), options.pinned_bytes),
      uploads(context, options.sync_timeout_s),
      allocator(make_cuda_allocator(context, options.memory, options.slab_bytes)),
      pool(*allocator, counter, false, options.slab_bytes),
      group{.options = options,
            .trace = trace,
            .scratch = scratch,
            .pinned = pinned,
            .context = context,
            .uploads = uploads,
            .profile = profile} {
  for (std::size_t role = 0; role < streams.size(); ++role) {
    streams[role] = std::make_unique<CudaStream>(static_cast<StreamRole>(role), group);
    group.streams.push_back(streams[role].get());
  }
  uploads.start(pinned.acquire(options.upload_bytes, *streams.front(), PinnedMemory::kUploads),
                {.check =
                     [this] {
                       for (const auto& stream : streams) stream->check_watches();
                     },
                 .activity = [this] { return group.activity(); }});
}

void CudaDevice::State::drop() noexcept {
  scratch.drop();
  pinned.staging().drop();
  uploads.stop();
}

CudaDevice::State::~State() {
  for (CudaEventRecord& record : group.events->records()) record.destroy(context);
}

CudaDevice::CudaDevice(const DeviceOptions& options, CudaContext::Libraries libraries) : Device(options) {
  ZS_CHECK(options.perturb_seed == 0, "delays and poisoned memory are for the CPU device, seed {}",
           options.perturb_seed);
  state_ = std::make_unique<State>(options, std::move(libraries), trace_, counter_, profile_);
}

CudaDevice::~CudaDevice() {
  trace_.stop();
  end_streams(state_, options_.sync_timeout_s);
}

std::uint64_t CudaDevice::completed() const { return completed_of(state_->streams); }

}  // namespace zs
