#include "kernels/cuda/launch.h"

#include <map>
#include <string>

#include "kernels/cuda/image.h"
#include "runtime/device/cuda_context.h"

namespace zs::cuda {
namespace {

/// The kernels as one stream has loaded them, at its first launch. Dies with the stream's ExecContext.
class LoadedKernels {
 public:
  LoadedKernels() = default;
  ~LoadedKernels() {
    if (module_ != nullptr) log_cuda(gpu_->driver(), gpu_->driver().module_unload(module_), "cuModuleUnload");
  }
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;

  CUfunc_st* function(const CudaContext& gpu, const char* name, int shared_bytes) {
    if (module_ == nullptr) load(gpu);
    Function& function = functions_[name];
    if (function.handle == nullptr) gpu.check(gpu.driver().module_function(&function.handle, module_, name), "cuModuleGetFunction", name);
    if (shared_bytes > function.most_shared_bytes) {
      gpu.check(gpu.driver().function_attribute(function.handle, CudaDriver::kMostDynamicSharedBytes, shared_bytes), "cuFuncSetAttribute",
                name);
      function.most_shared_bytes = shared_bytes;
    }
    return function.handle;
  }

 private:
  struct Function {
    CUfunc_st* handle = nullptr;
    int most_shared_bytes = 48 << 10;  // what every function may use
  };
  void load(const CudaContext& gpu) {
    gpu.check(gpu.driver().module_load(&module_, kernel_image().data()), "cuModuleLoadData");
    gpu_ = &gpu;
  }

  const CudaContext* gpu_ = nullptr;
  CUmod_st* module_ = nullptr;
  std::map<std::string, Function, std::less<>> functions_;
};

CudaDriver::Address address_of(const Buffer& buffer) { return reinterpret_cast<CudaDriver::Address>(buffer.data); }

}  // namespace

CUstream_st* stream_of(const ExecContext& ctx) { return static_cast<CUstream_st*>(ctx.native_stream()); }

void launch(ExecContext& ctx, const char* kernel, std::int64_t blocks, int threads, const void* args, int shared_bytes) {
  constexpr std::int64_t kMostBlocks = INT32_MAX;
  ZS_CHECK(blocks >= 0 && blocks <= kMostBlocks, "{} blocks of {}, a grid has at most {}", blocks, kernel, kMostBlocks);
  if (blocks == 0) return;
  const CudaContext& gpu = ctx.gpu();
  CUfunc_st* const function = ctx.state<LoadedKernels>().function(gpu, kernel, shared_bytes);
  void* arguments[] = {const_cast<void*>(args)};
  gpu.check(gpu.driver().launch(function, static_cast<unsigned>(blocks), 1, 1, static_cast<unsigned>(threads), 1, 1,
                                static_cast<unsigned>(shared_bytes), stream_of(ctx), arguments, nullptr),
            "cuLaunchKernel", kernel);
}

void set_bytes(ExecContext& ctx, const Buffer& out, unsigned char value) {
  if (out.bytes() == 0) return;
  const CudaContext& gpu = ctx.gpu();
  gpu.check(gpu.driver().memory_set(address_of(out), value, static_cast<std::size_t>(out.bytes()), stream_of(ctx)), "cuMemsetD8Async");
}

Data data_of(const Buffer& buffer) {
  ZS_CHECK(buffer.device == DeviceKind::cuda, "a CUDA kernel got a buffer of device {}", name_of(buffer.device));
  ZS_CHECK(buffer.dtype == DType::f32 || buffer.dtype == DType::bf16, "expected f32 or bf16, got {}", name_of(buffer.dtype));
  return {buffer.data, buffer.dtype == DType::bf16};
}

float* floats_of(const Buffer& buffer) {
  data_of(buffer);
  return buffer.as<float>();
}

}  // namespace zs::cuda
