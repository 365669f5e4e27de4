#include "kernels/cuda/launch.h"

#include "kernels/cuda/image.h"
#include "runtime/device/cuda_context.h"

namespace zs::cuda {
namespace {

void load_kernels(const CudaContext& gpu) { gpu.load(kernel_image().data(), kernel_names()); }

CudaDriver::Address address_of(const Buffer& buffer) { return reinterpret_cast<CudaDriver::Address>(buffer.data); }

}  // namespace

std::string typed(const std::string& kernel, DType dtype) { return kernel + "_" + std::string(name_of(dtype)); }

void add_typed(KernelNames& names, std::initializer_list<std::string> kernels) {
  for (const std::string& kernel : kernels)
    for (const DType dtype : {DType::f32, DType::bf16}) names.push_back(typed(kernel, dtype));
}

void add_pairs(KernelNames& names, std::initializer_list<std::string> kernels) {
  for (const std::string& kernel : kernels)
    for (const DType dtype : {DType::f32, DType::bf16}) add_typed(names, {typed(kernel, dtype)});
}

CUstream_st* stream_of(const ExecContext& ctx) { return static_cast<CUstream_st*>(ctx.native_stream()); }

void launch(ExecContext& ctx, const std::string& kernel, std::int64_t blocks, int threads, const void* args,
            int shared_bytes) {
  constexpr std::int64_t kMostBlocks = INT32_MAX;
  ZS_CHECK(blocks >= 0 && blocks <= kMostBlocks, "{} blocks of {}, a grid has at most {}", blocks, kernel, kMostBlocks);
  if (blocks == 0) return;
  const CudaContext& gpu = ctx.gpu();
  load_kernels(gpu);
  CUfunc_st* const function = gpu.function(kernel, shared_bytes);
  void* arguments[] = {const_cast<void*>(args)};
  gpu.check(gpu.driver().launch(function, static_cast<unsigned>(blocks), 1, 1, static_cast<unsigned>(threads), 1, 1,
                                static_cast<unsigned>(shared_bytes), stream_of(ctx), arguments, nullptr),
            "cuLaunchKernel", kernel);
}

void set_bytes(ExecContext& ctx, const Buffer& out, unsigned char value) {
  if (out.bytes() == 0) return;
  const CudaContext& gpu = ctx.gpu();
  load_kernels(gpu);  // the first thing that is done to memory, long before ranks wait for each other
  gpu.check(gpu.driver().memory_set(address_of(out), value, static_cast<std::size_t>(out.bytes()), stream_of(ctx)),
            "cuMemsetD8Async");
}

ElementKind kind_of(DType dtype) {
  return dtype == DType::bf16 ? ElementKind::bf16 : dtype == DType::i32 ? ElementKind::i32 : ElementKind::f32;
}

void* elements_of(const Buffer& buffer) {
  ZS_CHECK(buffer.device == DeviceKind::cuda, "a CUDA kernel got a buffer of device {}", name_of(buffer.device));
  ZS_CHECK(buffer.dtype == DType::f32 || buffer.dtype == DType::bf16, "expected f32 or bf16, got {}",
           name_of(buffer.dtype));
  return buffer.data;
}

float* floats_of(const Buffer& buffer) {
  elements_of(buffer);
  return buffer.as<float>();
}

}  // namespace zs::cuda
