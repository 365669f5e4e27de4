#include "kernels/cuda/device.h"

/// Elements in 4 bits (runtime/base/nf4_blocks.h), the same bits as the CPU's.
namespace zs::cuda {
namespace {

template <class T>
__device__ inline void unpack_blocks(const Nf4Args& args) {
  __shared__ float values[16];
  for (int i = 0; i < 16; ++i)
    if (static_cast<int>(threadIdx.x) == i) values[i] = args.values[i];  // an index that varies is local memory
  __syncthreads();
  const std::int64_t a_slice = (args.elems + kNf4Elems - 1) / kNf4Elems, thread = global_thread();
  const std::int64_t slice = thread / a_slice, at = (thread - slice * a_slice) * kNf4Elems;
  if (slice >= args.slices) return;
  const std::uint8_t* const packed = args.packed + slice * args.stride;
  const float most = *reinterpret_cast<const float*>(packed + args.scales_at + at / kNf4Block * 4);
  const std::int64_t begin = slice * args.elems + at, end = (slice + 1) * args.elems;
  const bool is_whole = begin + kNf4Elems <= end;
  float x[kNf4Elems];
  for (int i = 0; i < kNf4Elems / 2; ++i) {
    const std::uint32_t both = begin + 2 * i < end ? packed[at / 2 + i] : 0u;
    x[2 * i] = values[both >> 4] * most;
    x[2 * i + 1] = values[both & 15u] * most;
  }
  for (int i = 0; i < kNf4Elems; ++i)
    if (!(x[i] == x[i])) x[i] = float_of(0x7fc00000u);  // processors differ in theirs
  with_packs<T>(args.is_aligned && is_whole, [&](auto packs) { packs.store(args.data, begin, end, x); });
}

}  // namespace

ZS_KERNEL(zs_unpack_nf4, Nf4Args, unpack_blocks<T>(args))

}  // namespace zs::cuda
