#if defined(ZS_ISA)
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/vec.h"
#include "kernels/stochastic_rounding.h"

namespace zs::cpu::ZS_ISA {
namespace {

void stochastic_cast(int threads, std::uint16_t* out, const float* in, std::int64_t n,
                     const StochasticRounding& rounding) {
  const StochasticRounding r = rounding;
  parallel_ranges(split_elements(threads, n), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin;
         i < end;) {  // run by run: a division for each element would take longer than all the rest
      const std::int64_t run = i / r.run, stop = min_of(end, (run + 1) * r.run),
                         shift = r.first + run * (r.stride - r.run);
#pragma omp simd
      for (std::int64_t k = i; k < stop; ++k)
        out[k] = stochastically_rounded(word_of(in[k]), r.key, static_cast<std::uint64_t>(shift + k));
      i = stop;
    }
  });
}

}  // namespace

void fill_stochastic_cast(Isa& isa) { isa.stochastic_cast = stochastic_cast; }

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

void stochastic_cast(ExecContext& ctx, Buffer out, Buffer in, const StochasticRounding& rounding) {
  const std::int64_t elems = checks::stochastic_cast(out, in, rounding);
  isa().stochastic_cast(ctx.threads(), static_cast<std::uint16_t*>(data_of(out).address), floats_of(in), elems,
                        rounding);
}

}  // namespace

void fill_stochastic_cast(KernelTable& table) { table.stochastic_cast = stochastic_cast; }

}  // namespace zs::cpu
#endif
