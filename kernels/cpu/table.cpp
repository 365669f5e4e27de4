#include "kernels/cpu/dispatch.h"
#include "runtime/base/cpu_isa.h"

namespace zs {
namespace cpu {
namespace {

const Isa& table_of(CpuIsa isa) {
#if defined(ZS_HAS_AMX)
  if (isa == CpuIsa::amx) return amx::kIsa;
#endif
#if defined(__x86_64__)
  if (isa == CpuIsa::avx512) return avx512::kIsa;
  if (isa == CpuIsa::avx2) return avx2::kIsa;
#endif
  return baseline::kIsa;
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
  for (const CpuIsa isa : available_cpu_isas()) list.push_back(&table_of(isa));
  return list;
}

const Isa& isa() {
  static const Isa& chosen = table_of(chosen_cpu_isa());
  return chosen;
}

}  // namespace cpu

const KernelTable& cpu_kernels() {
  cpu::isa();
  return cpu::kTable;
}

const char* cpu_isa() { return cpu::isa().name; }

}  // namespace zs
