#pragma once

#include "kernels/cpu/isa.h"

/// Functions by which each family puts its vector loops into the table of an instruction set (ZS_ISA).
namespace zs::cpu::ZS_ISA {

void fill_attention(Isa& isa);
void fill_attention_cached(Isa& isa);
void fill_blockwise_adamw(Isa& isa);
void fill_elementwise(Isa& isa);
void fill_loss(Isa& isa);
void fill_map(Isa& isa);
void fill_norms(Isa& isa);
void fill_optimizer(Isa& isa);
void fill_reduce(Isa& isa);
void fill_rotary(Isa& isa);
void fill_rows(Isa& isa);
void fill_stochastic_cast(Isa& isa);
void fill_swiglu(Isa& isa);

inline constexpr void (*kFamilies[])(Isa&) = {
    fill_attention, fill_attention_cached, fill_blockwise_adamw, fill_elementwise, fill_loss, fill_map,
    fill_norms,     fill_optimizer,        fill_reduce,          fill_rotary,      fill_rows, fill_stochastic_cast,
    fill_swiglu};

}  // namespace zs::cpu::ZS_ISA
