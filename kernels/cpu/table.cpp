#include <cstdlib>
#include <string_view>

#include "kernels/cpu/dispatch.h"

namespace zs {
namespace cpu {
namespace {

bool supports_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool supports_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

const Isa& best_isa() {
#if defined(__x86_64__)
  if (supports_avx512()) return avx512::kIsa;
  if (supports_avx2()) return avx2::kIsa;
#endif
  return baseline::kIsa;
}

const Isa& choose_isa() {
  const char* value = std::getenv("ZSHARD_ISA");
  const std::string_view wanted = value != nullptr ? value : "";
  if (wanted.empty()) return best_isa();
  if (wanted == "baseline") return baseline::kIsa;
#if defined(__x86_64__)
  if (wanted == "avx512" && supports_avx512()) return avx512::kIsa;
  if (wanted == "avx2" && supports_avx2()) return avx2::kIsa;
#endif
  const bool is_known = wanted == "avx512" || wanted == "avx2";
  throw Error(ExitCode::usage, is_known ? "this processor lacks the instruction set" : "unknown instruction set",
              fmt::format("ZSHARD_ISA={}", wanted), fmt::format("unset it, or choose {} or lower", best_isa().name));
}

const KernelTable kTable = {
    .zero = zero,
    .copy = copy,
    .copy_rows = copy_rows,
    .cast = cast,
    .add = add,
    .scale = scale,
    .accumulate = accumulate,
    .matmul = matmul,
    .bias_backward = bias_backward,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .position_backward = position_backward,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .cross_entropy_forward = cross_entropy_forward,
    .cross_entropy_backward = cross_entropy_backward,
    .sum = sum,
    .squared_norm = squared_norm,
    .max_exponent = max_exponent,
    .fixed_point_squares = fixed_point_squares,
    .clip_coefficient = clip_coefficient,
    .adamw = adamw,
};

}  // namespace

const Isa& isa() {
  static const Isa& chosen = choose_isa();
  return chosen;
}

}  // namespace cpu

const KernelTable& cpu_kernels() {
  cpu::isa();
  return cpu::kTable;
}

const char* cpu_isa() { return cpu::isa().name; }

}  // namespace zs
