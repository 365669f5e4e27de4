#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

/// Kernels come in families. A family registers itself: in each back end one function puts its kernels into the table.
/// A kernel that no family fills in is null. A new family has its functions here, those of its vector loops in
/// cpu/isa_families.h, and its sources in the build files.
namespace zs::cpu {

void fill_attention(KernelTable& table);
void fill_attention_cached(KernelTable& table);
void fill_blockwise_adamw(KernelTable& table);
void fill_elementwise(KernelTable& table);
void fill_experts(KernelTable& table);
void fill_fp8_blocks(KernelTable& table);
void fill_grouped_matmul(KernelTable& table);
void fill_int8_blocks(KernelTable& table);
void fill_lines(KernelTable& table);
void fill_loss(KernelTable& table);
void fill_map(KernelTable& table);
void fill_matmul(KernelTable& table);
void fill_memory(KernelTable& table);
void fill_nf4_blocks(KernelTable& table);
void fill_norms(KernelTable& table);
void fill_optimizer(KernelTable& table);
void fill_reduce(KernelTable& table);
void fill_rotary(KernelTable& table);
void fill_rows(KernelTable& table);
void fill_stochastic_cast(KernelTable& table);
void fill_swiglu(KernelTable& table);

inline constexpr void (*kFamilies[])(KernelTable&) = {
    fill_attention,      fill_attention_cached, fill_blockwise_adamw, fill_elementwise, fill_experts, fill_fp8_blocks,
    fill_grouped_matmul, fill_int8_blocks,      fill_lines,           fill_loss,        fill_map,     fill_matmul,
    fill_memory,         fill_nf4_blocks,       fill_norms,           fill_optimizer,   fill_reduce,  fill_rotary,
    fill_rows,           fill_stochastic_cast,  fill_swiglu};

}  // namespace zs::cpu

namespace zs::cuda {

/// Names of kernels in the image, which are loaded together.
using KernelNames = std::vector<std::string>;

void fill_attention(KernelTable& table, KernelNames& names);
void fill_attention_cached(KernelTable& table, KernelNames& names);
void fill_blockwise_adamw(KernelTable& table, KernelNames& names);
void fill_elementwise(KernelTable& table, KernelNames& names);
void fill_int8_blocks(KernelTable& table, KernelNames& names);
void fill_lines(KernelTable& table, KernelNames& names);
void fill_loss(KernelTable& table, KernelNames& names);
void fill_map(KernelTable& table, KernelNames& names);
void fill_matmul(KernelTable& table, KernelNames& names);
void fill_memory(KernelTable& table, KernelNames& names);
void fill_nf4_blocks(KernelTable& table, KernelNames& names);
void fill_norms(KernelTable& table, KernelNames& names);
void fill_optimizer(KernelTable& table, KernelNames& names);
void fill_reduce(KernelTable& table, KernelNames& names);
void fill_rotary(KernelTable& table, KernelNames& names);
void fill_rows(KernelTable& table, KernelNames& names);
void fill_stochastic_cast(KernelTable& table, KernelNames& names);
void fill_swiglu(KernelTable& table, KernelNames& names);

inline constexpr void (*kFamilies[])(KernelTable&, KernelNames&) = {fill_attention,
                                                                    fill_attention_cached,
                                                                    fill_blockwise_adamw,
                                                                    fill_elementwise,
                                                                    fill_int8_blocks,
                                                                    fill_lines,
                                                                    fill_loss,
                                                                    fill_map,
                                                                    fill_matmul,
                                                                    fill_memory,
                                                                    fill_nf4_blocks,
                                                                    fill_norms,
                                                                    fill_optimizer,
                                                                    fill_reduce,
                                                                    fill_rotary,
                                                                    fill_rows,
                                                                    fill_stochastic_cast,
                                                                    fill_swiglu};

}  // namespace zs::cuda
