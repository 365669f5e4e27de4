#pragma once

#include "kernels/kernels.h"

/// The layer between Buffers and kernels of the GPU: checks of dtypes and sizes, then launches on the stream of the ExecContext. The
/// contracts are KernelTable's.
namespace zs::cuda {

void zero(ExecContext& ctx, Buffer out);
void copy(ExecContext& ctx, Buffer out, Buffer in);
void upload(ExecContext& ctx, Buffer out, const void* in);
void download(ExecContext& ctx, void* out, Buffer in);
void copy_rows(ExecContext& ctx, Buffer out, Buffer in, const RowCopy& rows);
void cast(ExecContext& ctx, Buffer out, Buffer in);
void stochastic_cast(ExecContext& ctx, Buffer out, Buffer in, const StochasticRounding& rounding);
void pack_int8(ExecContext& ctx, Buffer packed, Buffer elements, int slices);
void unpack_int8(ExecContext& ctx, Buffer elements, Buffer packed, int slices);
void fold_int8(ExecContext& ctx, Buffer out, Buffer packed, int parts, bool accumulate);
void add(ExecContext& ctx, Buffer out, Buffer a, Buffer b);
void scale(ExecContext& ctx, Buffer out, Buffer in, float factor);
void accumulate(ExecContext& ctx, Buffer out, Buffer in);
void gelu_forward(ExecContext& ctx, Buffer y, Buffer x, GeluKind kind);
void gelu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, GeluKind kind);
std::int64_t matmul_scratch(const MatmulDims& dims);
void matmul(ExecContext& ctx, Buffer c, Buffer a, Buffer b, Buffer bias, const MatmulDims& dims);
void matmul_gelu(ExecContext& ctx, Buffer y, const MatmulBuffers& product, const MatmulDims& dims);
void matmul_gelu_backward(ExecContext& ctx, Buffer x, const MatmulBuffers& product, const MatmulDims& dims);
void bias_backward(ExecContext& ctx, Buffer dbias, Buffer dy, float beta);
void embedding_forward(ExecContext& ctx, Buffer out, Buffer ids, Buffer table, Buffer positions, std::int64_t time);
void embedding_backward(ExecContext& ctx, Buffer dtable, Buffer ids, Buffer dy, std::int64_t width, float beta);
void position_backward(ExecContext& ctx, Buffer dpositions, Buffer dy, std::int64_t time, std::int64_t width, float beta);
void layer_norm_forward(ExecContext& ctx, Buffer y, Buffer mean, Buffer rstd, NormInput x, Buffer gamma, Buffer beta, float eps);
void layer_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, Buffer dbeta, NormGradient dy, Buffer x, Buffer mean, Buffer rstd,
                         Buffer gamma, float grad_beta);
void rms_norm_forward(ExecContext& ctx, Buffer y, Buffer rstd, NormInput x, Buffer gamma, float eps);
void rms_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, NormGradient dy, Buffer x, Buffer rstd, Buffer gamma, float grad_beta);
void swiglu_forward(ExecContext& ctx, Buffer y, Buffer x, std::int64_t width);
void swiglu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, std::int64_t width);
void rotary(ExecContext& ctx, Buffer out, Buffer in, const AttentionDims& dims, const RotaryOptions& options);
/// Of each row's delta.
std::int64_t attention_scratch(int threads, const AttentionDims& dims);
void attention_forward(ExecContext& ctx, Buffer out, Buffer lse, Buffer qkv, const AttentionDims& dims);
void attention_backward(ExecContext& ctx, Buffer dqkv, Buffer dout, Buffer out, Buffer qkv, Buffer lse, const AttentionDims& dims);
void cross_entropy_forward(ExecContext& ctx, Buffer losses, Buffer lse, Buffer logits, Buffer targets, std::int64_t classes);
void cross_entropy_backward(ExecContext& ctx, Buffer dlogits, Buffer logits, Buffer lse, Buffer targets, Buffer dloss, std::int64_t classes,
                            float factor);
void sum(ExecContext& ctx, Buffer out, Buffer in, float factor);
void squared_norm(ExecContext& ctx, Buffer out, Buffer in);
void max_exponent(ExecContext& ctx, Buffer out, Buffer in);
void fixed_point_squares(ExecContext& ctx, Buffer out, Buffer in, Buffer exponent, int shift);
void clip_coefficient(ExecContext& ctx, Buffer scalars, Buffer squared_norm, Buffer exponent, int shift, float clip);
void adamw(ExecContext& ctx, Buffer master, Buffer m, Buffer v, Buffer copy, Buffer grad, Buffer scalars, const AdamWOptions& options);

}  // namespace zs::cuda
