#pragma once

#include <type_traits>

#include "kernels/cuda/args.h"

/// Foundations of all kernels on the GPU. Kernels use no more of CUDA than blocks, threads, shared memory, barriers,
/// f32 and f64 arithmetic, and what warp.h has, so that the tests can run the same sources on the host
/// (tests/gpu/emulation). Multiplication and addition are fused only where the source says so: which of two equal loops
/// an element goes through changes no bit.
namespace zs::cuda {

struct Bf16 {
  std::uint16_t bits;
};

__device__ inline std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
__device__ inline float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(Bf16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16); }

template <class T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
/// Rounds to nearest even; NaN stays NaN.
template <>
__device__ inline Bf16 from_float<Bf16>(float value) {
  const std::uint32_t word = bits_of(value);
  const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t rounded = is_nan ? (word >> 16) | 0x40u : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  return {static_cast<std::uint16_t>(rounded)};
}

/// One access to memory of 16 bytes.
struct alignas(16) Words {
  std::uint32_t w[4];
};

/// `kElems` elements from a 16-byte boundary on, as floats: kElems * sizeof(T) is a multiple of 16.
template <int kElems>
__device__ inline void load_pack(const float* at, float (&out)[kElems]) {
  for (int k = 0; k < kElems; k += 4) {
    const Words words = *reinterpret_cast<const Words*>(at + k);
    for (int i = 0; i < 4; ++i) out[k + i] = float_of(words.w[i]);
  }
}
template <int kElems>
__device__ inline void load_pack(const Bf16* at, float (&out)[kElems]) {
  for (int k = 0; k < kElems; k += 8) {
    const Words words = *reinterpret_cast<const Words*>(at + k);
    for (int i = 0; i < 4; ++i) {  // the element at the lower address is the lower half
      out[k + 2 * i] = float_of(words.w[i] << 16);
      out[k + 2 * i + 1] = float_of(words.w[i] & 0xffff0000u);
    }
  }
}

template <int kElems>
__device__ inline void store_pack(float* at, const float (&in)[kElems]) {
  for (int k = 0; k < kElems; k += 4) {
    Words words;
    for (int i = 0; i < 4; ++i) words.w[i] = bits_of(in[k + i]);
    *reinterpret_cast<Words*>(at + k) = words;
  }
}
template <int kElems>
__device__ inline void store_pack(Bf16* at, const float (&in)[kElems]) {
  for (int k = 0; k < kElems; k += 8) {
    Words words;
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t low = from_float<Bf16>(in[k + 2 * i]).bits, high = from_float<Bf16>(in[k + 2 * i + 1]).bits;
      words.w[i] = low | high << 16;
    }
    *reinterpret_cast<Words*>(at + k) = words;
  }
}

/// Elements of T, or of U, in whole aligned packs, or in any. A kernel asks once which they are, so that no load waits
/// for what another branches on.
template <class T, bool kAreWhole>
struct Packs {
  using Type = T;
  /// Loads up to kElems elements from `at` on, those before `end`, as floats, and zeros after them. Returns how many.
  /// (Loops over the elements of a pack have a fixed number of rounds, so that packs stay in registers.)
  template <class U = T, int kElems>
  __device__ static int load(const void* data, std::int64_t at, std::int64_t end, float (&out)[kElems]) {
    const U* const in = static_cast<const U*>(data) + at;
    const int count = kAreWhole || end - at >= kElems ? kElems : static_cast<int>(end - at);
    if constexpr (kAreWhole)
      load_pack(in, out);
    else
      for (int i = 0; i < kElems; ++i) out[i] = i < count ? to_float(in[i]) : 0.0f;
    return count;
  }
  template <class U = T, int kElems>
  __device__ static void store(void* data, std::int64_t at, std::int64_t end, const float (&in)[kElems]) {
    U* const out = static_cast<U*>(data) + at;
    if constexpr (kAreWhole)
      store_pack(out, in);
    else
      for (int i = 0; i < kElems; ++i)
        if (i < end - at) out[i] = from_float<U>(in[i]);
  }
};
/// body(Packs<T, are_whole>{})
template <class T, class Body>
__device__ inline void with_packs(bool are_whole, const Body& body) {
  if (are_whole)
    body(Packs<T, true>{});
  else
    body(Packs<T, false>{});
}
/// Loads elements for a kernel that loads no other pack.
template <class T, int kElems>
__device__ inline int load_some(const void* data, std::int64_t at, std::int64_t end, bool is_aligned,
                                float (&out)[kElems]) {
  if (is_aligned && at + kElems <= end) return Packs<T, true>::load(data, at, end, out);
  return Packs<T, false>::load(data, at, end, out);
}

/// A kernel of kThreads a block for each dtype T of its elements, or for each pair T and U, whose names typed() has
/// (launch.h). It does what follows, with `args`; ZS_BY_PACKS: with P, the Packs of its rows.
#define ZS_KERNEL_OF(name, type, other, Args, ...)   \
  extern "C" __global__ void name(const Args args) { \
    using T [[maybe_unused]] = type;                 \
    using U [[maybe_unused]] = other;                \
    __VA_ARGS__;                                     \
  }
#define ZS_KERNEL(name, Args, ...)                          \
  ZS_KERNEL_OF(name##_f32, float, float, Args, __VA_ARGS__) \
  ZS_KERNEL_OF(name##_bf16, Bf16, Bf16, Args, __VA_ARGS__)
#define ZS_PAIR_KERNEL(name, Args, ...)                         \
  ZS_KERNEL_OF(name##_f32_f32, float, float, Args, __VA_ARGS__) \
  ZS_KERNEL_OF(name##_f32_bf16, float, Bf16, Args, __VA_ARGS__) \
  ZS_KERNEL_OF(name##_bf16_f32, Bf16, float, Args, __VA_ARGS__) \
  ZS_KERNEL_OF(name##_bf16_bf16, Bf16, Bf16, Args, __VA_ARGS__)
#define ZS_BY_PACKS(...)                           \
  with_packs<T>(args.is_aligned, [&](auto packs) { \
    using P = decltype(packs);                     \
    __VA_ARGS__;                                   \
  })

/// Value as it would come back from memory.
template <class T>
__device__ inline float rounded(float value) {
  return to_float(from_float<T>(value));
}

/// visit(begin) for the packs of a row of `width` that this thread of the block takes.
template <class Visit>
__device__ inline void for_each_pack(std::int64_t width, const Visit& visit) {
  for (std::int64_t begin = threadIdx.x * kRowElems; begin < width; begin += kThreads * kRowElems) visit(begin);
}

/// visit(i, n) for i, i + step .. below end: the next n, a constant, kAtOnce while there are so many, then 1. What n
/// elements need is asked for together: loop over them by visit's n, loads first.
template <int kAtOnce, class Visit>
__device__ inline void for_each_some(std::int64_t i, std::int64_t end, std::int64_t step, const Visit& visit) {
  for (; i + (kAtOnce - 1) * step < end; i += kAtOnce * step) visit(i, std::integral_constant<int, kAtOnce>{});
  for (; i < end; i += step) visit(i, std::integral_constant<int, 1>{});
}

__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// A wrong index ends the GPU's work: the next call of the driver says so, with the op.
__device__ inline std::int64_t checked_index(std::int64_t index, std::int64_t limit) {
  if (index < 0 || index >= limit) __trap();
  return index;
}

/// One for each thread, in shared memory.
template <class R>
__device__ inline R* one_a_thread() {
  __shared__ R all[kThreads];
  return all;
}
/// `value` of all threads of the block, combined as a tree of fixed shape; every thread gets it.
template <class R, class Combine>
__device__ inline R block_reduce(R value, const Combine& combine) {
  R* const shared = one_a_thread<R>();
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half)
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  const R result = shared[0];
  __syncthreads();
  return result;
}

}  // namespace zs::cuda
