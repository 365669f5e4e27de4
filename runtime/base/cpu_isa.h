#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace zs {

/// Instruction sets that vector loops are compiled for, each from the same sources. A processor that has one has those
/// before it.
enum class CpuIsa : std::uint8_t { baseline, avx2, avx512, amx };

constexpr std::string_view name_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::baseline: return "baseline";
    case CpuIsa::avx2: return "avx2";
    case CpuIsa::avx512: return "avx512";
    case CpuIsa::amx: return "amx";
  }
  return "?";
}

/// Instruction sets that this build has loops for, the processor has and the system lets this process use, the best
/// first.
const std::vector<CpuIsa>& available_cpu_isas();

/// The best of them, or what ZSHARD_ISA says: one that is not among them is an Error(usage).
CpuIsa chosen_cpu_isa();

}  // namespace zs
