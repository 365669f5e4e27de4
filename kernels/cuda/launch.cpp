#include "kernels/cuda/launch.h"

#include <array>

#include "kernels/cuda/image.h"
#include "runtime/device/cuda_context.h"

namespace zs::cuda {
namespace {

/// Every kernel of kernels.cu.
constexpr std::array kKernels = {
    "zs_accumulate",
    "zs_adamw",
    "zs_add",
    "zs_attention_delta",
    "zs_attention_dkeys",
    "zs_attention_dkeys_128",
    "zs_attention_dkeys_64",
    "zs_attention_dqueries",
    "zs_attention_dqueries_128",
    "zs_attention_dqueries_64",
    "zs_attention_forward",
    "zs_attention_forward_128",
    "zs_attention_forward_64",
    "zs_cast",
    "zs_clip_coefficient",
    "zs_column_sums",
    "zs_copy_rows",
    "zs_cross_entropy_backward",
    "zs_cross_entropy_forward",
    "zs_embedding_backward",
    "zs_embedding_forward",
    "zs_finish_reduction",
    "zs_fold_columns",
    "zs_fold_int8",
    "zs_gelu_backward",
    "zs_gelu_forward",
    "zs_layer_norm_backward",
    "zs_layer_norm_forward",
    "zs_pack_int8",
    "zs_position_backward",
    "zs_reduce",
    "zs_rms_norm_backward",
    "zs_rms_norm_forward",
    "zs_rotary",
    "zs_scale",
    "zs_stochastic_cast",
    "zs_swiglu_backward",
    "zs_swiglu_forward",
};

void load_kernels(const CudaContext& gpu) { gpu.load(kernel_image().data(), kKernels); }

CudaDriver::Address address_of(const Buffer& buffer) { return reinterpret_cast<CudaDriver::Address>(buffer.data); }

}  // namespace

CUstream_st* stream_of(const ExecContext& ctx) { return static_cast<CUstream_st*>(ctx.native_stream()); }

void launch(ExecContext& ctx, const char* kernel, std::int64_t blocks, int threads, const void* args, int shared_bytes) {
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
