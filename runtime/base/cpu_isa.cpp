#include "runtime/base/cpu_isa.h"

#include <cstdlib>

#include "runtime/base/check.h"

#if defined(ZS_HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace zs {
namespace {

#if defined(__x86_64__)
bool supports_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
}

bool supports_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

#if defined(ZS_HAS_AMX)
/// True if the processor has tiles for bf16 and the system lets this process use them: it has to ask.
bool supports_amx() {
  if (!supports_avx512() || !__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("amx-bf16")) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2), ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

std::vector<CpuIsa> find_isas() {
  std::vector<CpuIsa> list;
#if defined(ZS_HAS_AMX)
  if (supports_amx()) list.push_back(CpuIsa::amx);
#endif
#if defined(__x86_64__)
  if (supports_avx512()) list.push_back(CpuIsa::avx512);
  if (supports_avx2()) list.push_back(CpuIsa::avx2);
#endif
  list.push_back(CpuIsa::baseline);
  return list;
}

CpuIsa choose() {
  const char* value = std::getenv("ZSHARD_ISA");
  const std::string_view wanted = value != nullptr ? value : "";
  const std::vector<CpuIsa>& here = available_cpu_isas();
  if (wanted.empty()) return here.front();
  for (const CpuIsa isa : here)
    if (wanted == name_of(isa)) return isa;
  const bool is_known = wanted == "amx" || wanted == "avx512" || wanted == "avx2";
  throw Error(ExitCode::usage, is_known ? "this processor lacks the instruction set" : "unknown instruction set",
              fmt::format("ZSHARD_ISA={}", wanted),
              fmt::format("unset it, or choose {} or lower", name_of(here.front())));
}

}  // namespace

const std::vector<CpuIsa>& available_cpu_isas() {
  static const std::vector<CpuIsa> list = find_isas();
  return list;
}

CpuIsa chosen_cpu_isa() {
  static const CpuIsa chosen = choose();
  return chosen;
}

}  // namespace zs
