#include "kernels/cpu/isa_functions.h"

#define ZS_STRING_OF(name) #name
#define ZS_STRING(name) ZS_STRING_OF(name)

namespace zs::cpu::ZS_ISA {

const Isa kIsa = {
    .name = ZS_STRING(ZS_ISA),
    .zero = zero,
    .cast = cast,
    .stochastic_cast = stochastic_cast,
    .add = add,
    .scale = scale,
    .accumulate = accumulate,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .column_sums = column_sums,
    .embedding = embedding,
    .scatter_rows = scatter_rows,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .rotary = rotary,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .cross_entropy_forward = cross_entropy_forward,
    .cross_entropy_backward = cross_entropy_backward,
    .sum = sum,
    .squares = squares,
    .max_magnitude_bits = max_magnitude_bits,
    .fixed_point_squares = fixed_point_squares,
    .adamw = adamw,
};

}  // namespace zs::cpu::ZS_ISA
