#include <deque>
#include <memory>
#include <vector>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "runtime/device/cuda_context.h"

/// Between the memory of the host and that of the GPU.
namespace zs::cuda {
namespace {

/// What is on its way to the GPU. Whether the driver reads ordinary memory of the host at once or later it leaves open: so a copy is kept
/// until the GPU has passed its event. One per stream; dies with the stream's ExecContext, after the stream's work.
class Uploads {
 public:
  Uploads() = default;
  ~Uploads() {
    for (const Upload& upload : on_the_way_) log_cuda(gpu_->driver(), gpu_->driver().event_destroy(upload.passed), "cuEventDestroy");
    for (CUevent_st* event : unused_) log_cuda(gpu_->driver(), gpu_->driver().event_destroy(event), "cuEventDestroy");
  }
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  void add(ExecContext& ctx, const Buffer& out, const void* in) {
    gpu_ = &ctx.gpu();
    forget_passed();
    const auto* const bytes = static_cast<const std::byte*>(in);
    Upload& upload = on_the_way_.emplace_back(Upload{{bytes, bytes + out.bytes()}, take_event()});
    gpu_->copy(ctx.native_stream(), out, {upload.bytes.data(), out.bytes(), DType::u8, DeviceKind::cpu});
    gpu_->check(gpu_->driver().event_record(upload.passed, stream_of(ctx)), "cuEventRecord");
  }

 private:
  struct Upload {
    std::vector<std::byte> bytes;
    CUevent_st* passed;
  };

  void forget_passed() {
    while (!on_the_way_.empty()) {
      const int status = gpu_->driver().event_query(on_the_way_.front().passed);
      if (status == cuda_status::kNotReady) return;
      gpu_->check(status, "cuEventQuery");
      unused_.push_back(on_the_way_.front().passed);
      on_the_way_.pop_front();
    }
  }
  CUevent_st* take_event() {
    CUevent_st* event = nullptr;
    if (unused_.empty()) {
      gpu_->check(gpu_->driver().event_create(&event, CudaDriver::kWithoutTime), "cuEventCreate");
    } else {
      event = unused_.back();
      unused_.pop_back();
    }
    return event;
  }

  const CudaContext* gpu_ = nullptr;
  std::deque<Upload> on_the_way_;
  std::vector<CUevent_st*> unused_;
};

}  // namespace

void upload(ExecContext& ctx, Buffer out, const void* in) {
  if (out.bytes() > 0) ctx.state<Uploads>().add(ctx, out, in);
}

void download(ExecContext& ctx, void* out, Buffer in) {
  ctx.gpu().copy(ctx.native_stream(), {out, in.bytes(), DType::u8, DeviceKind::cpu}, in);
}

}  // namespace zs::cuda
