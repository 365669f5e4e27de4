#include "kernels/cuda/device.h"
#include "kernels/stochastic_rounding.h"

namespace zs::cuda {

/// Casts at random; a single run needs no division.
extern "C" __global__ void zs_stochastic_cast(const StochasticCastArgs args) {
  const std::int64_t begin = global_thread() * kRowElems;
  if (begin >= args.elems) return;
  float x[kRowElems];
  const int count = load_some<float>(args.in, begin, args.elems, args.is_aligned, x);
  const bool is_one_run = args.elems <= args.run;
  std::uint32_t halves[kRowElems];
  for (int i = 0; i < kRowElems; ++i) {
    const std::int64_t at = begin + i;
    const std::uint64_t index = is_one_run ? static_cast<std::uint64_t>(args.first + at)
                                           : index_in_parameter(args.first, args.run, args.stride, at);
    halves[i] = stochastically_rounded(bits_of(x[i]), args.key, index);
  }
  if (args.is_aligned && count == kRowElems) {
    Words words;
    for (int i = 0; i < 4; ++i) words.w[i] = halves[2 * i] | halves[2 * i + 1] << 16;
    *reinterpret_cast<Words*>(args.out + begin) = words;
    return;
  }
  for (int i = 0; i < kRowElems; ++i)
    if (i < count) args.out[begin + i] = static_cast<std::uint16_t>(halves[i]);
}

}  // namespace zs::cuda
