#include "kernels/cuda/dispatch.h"

namespace zs {
namespace {

/// Sums have the stream's workspace (ExecContext::workspace).
constexpr KernelScratch kScratch = {
    .matmul = cuda::matmul_scratch,
    .bias_backward = [](std::int64_t, std::int64_t) { return std::int64_t{0}; },
    .layer_norm_forward = [](std::int64_t) { return std::int64_t{0}; },
    .layer_norm_backward = [](std::int64_t, std::int64_t) { return std::int64_t{0}; },
    .attention = cuda::attention_scratch,
    .rotary = [](int, const AttentionDims&) { return std::int64_t{0}; },
};

constexpr KernelTable kTable = {
    .scratch = kScratch,
    .zero = cuda::zero,
    .copy = cuda::copy,
    .upload = cuda::upload,
    .download = cuda::download,
    .copy_rows = cuda::copy_rows,
    .cast = cuda::cast,
    .stochastic_cast = cuda::stochastic_cast,
    .pack_int8 = cuda::pack_int8,
    .unpack_int8 = cuda::unpack_int8,
    .fold_int8 = cuda::fold_int8,
    .add = cuda::add,
    .scale = cuda::scale,
    .accumulate = cuda::accumulate,
    .matmul = cuda::matmul,
    .matmul_gelu = cuda::matmul_gelu,
    .matmul_gelu_backward = cuda::matmul_gelu_backward,
    .bias_backward = cuda::bias_backward,
    .embedding_forward = cuda::embedding_forward,
    .embedding_backward = cuda::embedding_backward,
    .position_backward = cuda::position_backward,
    .layer_norm_forward = cuda::layer_norm_forward,
    .layer_norm_backward = cuda::layer_norm_backward,
    .rms_norm_forward = cuda::rms_norm_forward,
    .rms_norm_backward = cuda::rms_norm_backward,
    .gelu_forward = cuda::gelu_forward,
    .gelu_backward = cuda::gelu_backward,
    .swiglu_forward = cuda::swiglu_forward,
    .swiglu_backward = cuda::swiglu_backward,
    .rotary = cuda::rotary,
    .attention_forward = cuda::attention_forward,
    .attention_backward = cuda::attention_backward,
    .cross_entropy_forward = cuda::cross_entropy_forward,
    .cross_entropy_backward = cuda::cross_entropy_backward,
    .sum = cuda::sum,
    .squared_norm = cuda::squared_norm,
    .max_exponent = cuda::max_exponent,
    .fixed_point_squares = cuda::fixed_point_squares,
    .clip_coefficient = cuda::clip_coefficient,
    .adamw = cuda::adamw,
};

}  // namespace

const KernelTable& cuda_kernels() { return kTable; }

}  // namespace zs
