#pragma once

#include <optional>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/kernels.h"

/// Steps that the families' kernels share before they come to their vector loops: Buffers are checked and unpacked into
/// plain pointers. Compiled for the baseline only.
namespace zs::cpu {

/// Instruction set that ZSHARD_ISA or the processor chose, once for the process.
const Isa& isa();

/// Instruction sets that the processor has and the system lets this process use, the best first.
std::vector<const Isa*> available_isas();

inline constexpr std::int64_t kFloat = sizeof(float);

/// The buffer as f32 or bf16 elements; another dtype or device is a bug.
Data data_of(const Buffer& buffer);
inline Data data_or_none(const Buffer& buffer) { return buffer.empty() ? Data{} : data_of(buffer); }
/// The buffer as f32 elements.
float* floats_of(const Buffer& buffer);
/// The op's scratch, at most what it has declared.
inline float* scratch(ExecContext& ctx, std::int64_t bytes) { return static_cast<float*>(ctx.scratch(bytes)); }
/// Every index lies in [0, limit), or is `but`.
void check_indices(const char* what, const std::int32_t* indices, std::int64_t count, std::int64_t limit,
                   std::optional<std::int32_t> but = {});
/// gradient := sums + beta * gradient; for beta 0 what it holds is not read.
void store_gradient(ExecContext& ctx, const Buffer& gradient, float* sums, float beta);

}  // namespace zs::cpu
