#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/vec.h"
#include "kernels/stochastic_rounding.h"

namespace zs::cpu::ZS_ISA {

/// What is one run needs no division.
void stochastic_cast(int threads, std::uint16_t* out, const float* in, std::int64_t n, const StochasticRounding& rounding) {
  const StochasticRounding r = rounding;
  const bool is_one_run = n <= r.run;
  parallel_ranges(split_elements(threads, n), [=](std::int64_t begin, std::int64_t end) {
    if (!is_one_run) {
      for (std::int64_t i = begin; i < end; ++i)
        out[i] = stochastically_rounded(word_of(in[i]), r.key, index_in_parameter(r.first, r.run, r.stride, i));
      return;
    }
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i)
      out[i] = stochastically_rounded(word_of(in[i]), r.key, static_cast<std::uint64_t>(r.first + i));
  });
}

}  // namespace zs::cpu::ZS_ISA
