#pragma once

#include "kernels/cpu/isa.h"

/// The functions behind one instruction set's table; see isa.h for their contracts.
namespace zs::cpu::ZS_ISA {

void zero(int threads, Data out, std::int64_t n);
void cast(int threads, Data out, Data in, std::int64_t n);
void stochastic_cast(int threads, std::uint16_t* out, const float* in, std::int64_t n, const StochasticRounding& rounding);
void add(int threads, Data out, Data a, Data b, std::int64_t n);
void scale(int threads, Data out, Data in, std::int64_t n, float factor);
void accumulate(int threads, Data out, Data in, std::int64_t n);
void gelu_forward(int threads, Data y, Data x, std::int64_t n, GeluKind kind);
void gelu_backward(int threads, Data dx, Data dy, Data x, std::int64_t n, GeluKind kind);

void column_sums(int threads, float* out, float* parts, Data dy, Rows rows);
void embedding(int threads, const Embedding& args);
void scatter_rows(int threads, const ScatterRows& args);
void layer_norm_forward(int threads, const LayerNormForward& args);
void layer_norm_backward(int threads, const LayerNormBackward& args);

void swiglu_forward(int threads, Data y, Data x, Rows rows);
void swiglu_backward(int threads, Data dx, Data dy, Data x, Rows rows);
void rotary(int threads, const Rotary& args);
void attention_forward(int threads, const Attention& args);
void attention_backward(int threads, const Attention& args);
#if defined(__AMX_BF16__)
/// bf16 only.
void attention_forward_amx(int threads, const Attention& args);
void attention_backward_amx(int threads, const Attention& args);
#endif

void cross_entropy_forward(int threads, const CrossEntropy& args);
void cross_entropy_backward(int threads, const CrossEntropy& args);

double sum(int threads, const float* in, std::int64_t n);
double squares(int threads, Data in, std::int64_t n);
std::int32_t max_magnitude_bits(int threads, Data in, std::int64_t n);
std::int64_t fixed_point_squares(int threads, Data in, std::int64_t n, double factor);
void adamw(int threads, const AdamW& args, std::int64_t n);

}  // namespace zs::cpu::ZS_ISA
