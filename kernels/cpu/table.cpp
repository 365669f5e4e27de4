#include "kernels/cpu/host.h"
#include "kernels/families.h"
#include "runtime/base/cpu_isa.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace cpu {
namespace {

const Isa& table_of(CpuIsa isa) {
#if defined(ZS_HAS_AMX)
  if (isa == CpuIsa::amx) return amx::loops();
#endif
#if defined(__x86_64__)
  if (isa == CpuIsa::avx512) return avx512::loops();
  if (isa == CpuIsa::avx2) return avx2::loops();
#endif
  return baseline::loops();
}

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

Data data_of(const Buffer& buffer) {
  ZS_CHECK(buffer.device == DeviceKind::cpu, "a CPU kernel got a buffer of device {}", name_of(buffer.device));
  ZS_CHECK(buffer.dtype == DType::f32 || buffer.dtype == DType::bf16, "expected f32 or bf16, got {}",
           name_of(buffer.dtype));
  return {buffer.data, buffer.dtype == DType::bf16};
}

float* floats_of(const Buffer& buffer) {
  data_of(buffer);
  return buffer.as<float>();
}

void check_indices(const char* what, const std::int32_t* indices, std::int64_t count, std::int64_t limit,
                   std::optional<std::int32_t> but) {
  for (std::int64_t i = 0; i < count; ++i)
    if ((indices[i] < 0 || indices[i] >= limit) && indices[i] != but)
      throw UsageError(
          fmt::format("{} {} is {}, expected [0, {})", what, i, indices[i], limit),
          "give numbers of lines, rows or classes that there are; targets that do not count are named as ignored");
}

void store_gradient(ExecContext& ctx, const Buffer& gradient, float* sums, float beta) {
  const Buffer in{sums, gradient.elems, DType::f32, gradient.device};
  const KernelTable& kernels = cpu_kernels();
  if (beta == 0.0f) return kernels.cast(ctx, gradient, in);
  if (beta != 1.0f) kernels.scale(ctx, gradient, gradient, beta);
  kernels.accumulate(ctx, gradient, in);
}

}  // namespace cpu

const KernelTable& cpu_kernels() {
  static const KernelTable table = [] {
    cpu::isa();
    KernelTable filled{};
    for (const auto fill : cpu::kFamilies) fill(filled);
    return filled;
  }();
  return table;
}

const char* cpu_isa() { return cpu::isa().name; }

}  // namespace zs
