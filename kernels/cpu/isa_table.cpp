#include "kernels/cpu/isa_families.h"

#define ZS_STRING_OF(name) #name
#define ZS_STRING(name) ZS_STRING_OF(name)

namespace zs::cpu::ZS_ISA {

/// Filled in when it is first asked for, not before main: this code, too, is compiled for the instruction set.
const Isa& loops() {
  static const Isa isa = [] {
#if defined(__AMX_BF16__)
    Isa filled = avx512::loops();
    fill_attention(filled);
#else
    Isa filled{};
    for (const auto fill : kFamilies) fill(filled);
#endif
    filled.name = ZS_STRING(ZS_ISA);
    return filled;
  }();
  return isa;
}

}  // namespace zs::cpu::ZS_ISA
