#include <cstdlib>
#include <string_view>

#include "kernels/cpu/dispatch.h"

#if defined(ZS_HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace zs {
namespace cpu {
namespace {

#if defined(__x86_64__)
bool supports_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
}

bool supports_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

#if defined(ZS_HAS_AMX)
/// Whether the processor has tiles for bf16 and the system lets this process use them: it has to ask.
bool supports_amx() {
  if (!supports_avx512() || !__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("amx-bf16")) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2), ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

const Isa& choose_isa() {
  const char* value = std::getenv("ZSHARD_ISA");
  const std::string_view wanted = value != nullptr ? value : "";
  const std::vector<const Isa*> here = available_isas();
  if (wanted.empty()) return *here.front();
  for (const Isa* isa : here)
    if (wanted == isa->name) return *isa;
  const bool is_known = wanted == "amx" || wanted == "avx512" || wanted == "avx2";
  throw Error(ExitCode::usage, is_known ? "this processor lacks the instruction set" : "unknown instruction set",
              fmt::format("ZSHARD_ISA={}", wanted), fmt::format("unset it, or choose {} or lower", here.front()->name));
}

const KernelTable kTable = {
    .scratch = {.matmul = [](const MatmulDims&) { return std::int64_t{0}; },  // the library keeps its own
                .bias_backward = bias_backward_scratch,
                .layer_norm_forward = layer_norm_forward_scratch,
                .layer_norm_backward = layer_norm_backward_scratch,
                .attention = attention_scratch,
                .rotary = rotary_scratch},
    .zero = zero,
    .copy = copy,
    .upload = upload,
    .download = download,
    .copy_rows = copy_rows,
    .cast = cast,
    .stochastic_cast = stochastic_cast,
    .pack_int8 = pack_int8,
    .unpack_int8 = unpack_int8,
    .fold_int8 = fold_int8,
    .add = add,
    .scale = scale,
    .accumulate = accumulate,
    .matmul = matmul,
    .matmul_gelu = nullptr,
    .matmul_gelu_backward = nullptr,
    .bias_backward = bias_backward,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .position_backward = position_backward,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .rms_norm_forward = rms_norm_forward,
    .rms_norm_backward = rms_norm_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .rotary = rotary,
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

std::vector<const Isa*> available_isas() {
  std::vector<const Isa*> list;
#if defined(ZS_HAS_AMX)
  if (supports_amx()) list.push_back(&amx::kIsa);
#endif
#if defined(__x86_64__)
  if (supports_avx512()) list.push_back(&avx512::kIsa);
  if (supports_avx2()) list.push_back(&avx2::kIsa);
#endif
  list.push_back(&baseline::kIsa);
  return list;
}

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
