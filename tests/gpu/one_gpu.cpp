#include "tests/gpu/one_gpu.h"

#include "tests/gpu/real_gpu.h"

namespace zs::test {

OneGpu::OneGpu(const EmulatedDriver::Options& emulation) {
  if (is_on_real_gpu()) return;
  driver_ = std::make_unique<EmulatedDriver>(emulation);
  cublas_ = std::make_unique<EmulatedCublas>(*driver_);
}

CudaContext::Libraries OneGpu::libraries() const {
  if (driver_ == nullptr) return {open_cuda_driver(), open_cublas_lt()};
  return {driver_->table(), cublas_->table()};
}

}  // namespace zs::test
