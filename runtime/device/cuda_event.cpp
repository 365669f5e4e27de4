#include "runtime/device/cuda_event.h"

namespace zs {

void CudaEventRecord::start(std::int64_t id, const CudaStream& stream, std::uint64_t position, std::exception_ptr error,
                            int capture) {
  is_in_use_.store(true, std::memory_order_relaxed);
  id_ = id;
  stream_ = &stream;
  position_ = position;
  error_ = std::move(error);
  capture_ = capture;
}

CUevent_st* CudaEventRecord::event(const CudaContext& context) {
  if (event_ == nullptr)
    context.check(context.driver().event_create(&event_, CudaDriver::kWithoutTime), "cuEventCreate");
  return event_;
}

void CudaEventRecord::destroy(const CudaContext& context) noexcept {
  if (CUevent_st* const event = std::exchange(event_, nullptr))
    log_cuda(context.driver(), context.driver().event_destroy(event), "cuEventDestroy");
}

bool CudaEventRecord::is_passed(const CudaContext& context) const noexcept {
  return event_ != nullptr && context.driver().event_query(event_) == cuda_status::kSuccess;
}

}  // namespace zs
