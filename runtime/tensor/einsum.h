#pragma once

#include <string>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace zs {

/// Products summed by pattern, "bqd,bkd->bqk": each operand's dims have letters, those that the result lacks are summed
/// over, and those that two operands share go together. No letter twice in one operand, and no "..."; the result's
/// letters, in any order, are named. Operands, f32 or bf16 of one dtype, are multiplied from the left on, by matmul.
Tensor einsum(const std::string& pattern, const std::vector<Tensor>& operands);

}  // namespace zs
