#pragma once

#include <memory>
#include <string>

#include "runtime/device/allocator.h"
#include "runtime/device/cuda_gpu.h"

namespace zs {

/// A GPU held by this rank: its primary context, which cuBLAS and NCCL in the same process use too, and the right to it. Two holders of one
/// GPU on this host, in one process or in two, are an Error(config), unless they share it: who shares neither asks nor is seen. Owned by
/// the device; outlives all that was made in it. Any thread.
class CudaContext {
 public:
  CudaContext(std::shared_ptr<const CudaDriver> driver, int ordinal, bool shares);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  const CudaGpu& gpu() const { return gpu_; }
  /// For the calling thread: comes before any call that makes, uses or frees something.
  void make_current() const { check(try_make_current(), "cuCtxSetCurrent"); }
  /// The same without an exception: the driver's return code.
  int try_make_current() const noexcept { return driver_->context_make_current(context_); }
  /// Reads a return code: see check_cuda. `what` is added to the GPU's name.
  void check(int status, const char* call, const std::string& what = {}) const;

 private:
  /// A name that only one socket of the host can have, and that goes with its process, however that ends.
  class Claim {
   public:
    Claim(const CudaGpu& gpu, bool shares);
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

   private:
    int socket_ = -1;
  };

  std::shared_ptr<const CudaDriver> driver_;
  CudaGpu gpu_;
  Claim claim_;
  int device_ = 0;
  CUctx_st* context_ = nullptr;
};

/// Memory of the GPU, 256-byte aligned, not initialised. `context` outlives it.
std::unique_ptr<Allocator> make_cuda_allocator(const CudaContext& context);

}  // namespace zs
