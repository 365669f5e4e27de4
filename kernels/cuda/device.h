#pragma once

#include "kernels/cuda/args.h"

/// What all kernels share on the GPU. Kernels use no more of CUDA than blocks, threads, shared memory, barriers,
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
/// To nearest even; NaN stays NaN.
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

/// body(T{}) with T = float or Bf16, as `data` says.
template <class Body>
__device__ inline void with_type(const Data& data, const Body& body) {
  if (data.is_bf16)
    body(Bf16{});
  else
    body(float{});
}

template <class T>
__device__ inline T* elements(const Data& data) {
  return static_cast<T*>(data.address);
}

/// Up to kElems elements from `at` on, those before `end`, as floats, and zeros behind them. Returns how many. (Loops
/// over the elements of a pack have a fixed number of rounds, so that packs stay in registers.)
template <int kElems>
__device__ inline int load_some(const Data& data, std::int64_t at, std::int64_t end, bool is_aligned,
                                float (&out)[kElems]) {
  const int count = static_cast<int>(end - at < kElems ? end - at : kElems);
  with_type(data, [&](auto tag) {
    const auto* const in = elements<const decltype(tag)>(data) + at;
    if (is_aligned && count == kElems) return load_pack(in, out);
    for (int i = 0; i < kElems; ++i) out[i] = i < count ? to_float(in[i]) : 0.0f;
  });
  return count;
}
template <int kElems>
__device__ inline void store_some(const Data& data, std::int64_t at, std::int64_t end, bool is_aligned,
                                  const float (&in)[kElems]) {
  const int count = static_cast<int>(end - at < kElems ? end - at : kElems);
  with_type(data, [&](auto tag) {
    using T = decltype(tag);
    T* const out = elements<T>(data) + at;
    if (is_aligned && count == kElems) return store_pack(out, in);
    for (int i = 0; i < kElems; ++i)
      if (i < count) out[i] = from_float<T>(in[i]);
  });
}
/// Packs that are whole, aligned and of one dtype, or any: how a kernel that asks once which they are reaches them all.
template <class T>
struct WholePacks {
  template <int kElems>
  __device__ static int load(const Data& data, std::int64_t at, std::int64_t, float (&out)[kElems]) {
    load_pack(elements<const T>(data) + at, out);
    return kElems;
  }
  template <int kElems>
  __device__ static void store(const Data& data, std::int64_t at, std::int64_t, const float (&in)[kElems]) {
    store_pack(elements<T>(data) + at, in);
  }
};
struct AnyPacks {
  template <int kElems>
  __device__ static int load(const Data& data, std::int64_t at, std::int64_t end, float (&out)[kElems]) {
    return load_some(data, at, end, false, out);
  }
  template <int kElems>
  __device__ static void store(const Data& data, std::int64_t at, std::int64_t end, const float (&in)[kElems]) {
    store_some(data, at, end, false, in);
  }
};
/// As it would come back from memory of that dtype.
__device__ inline float rounded(float value, const Data& data) {
  return data.is_bf16 ? to_float(from_float<Bf16>(value)) : value;
}

/// visit(begin) for the packs of a row of `width` that this thread of the block takes.
template <class Visit>
__device__ inline void for_each_pack(std::int64_t width, const Visit& visit) {
  for (std::int64_t begin = threadIdx.x * kRowElems; begin < width; begin += kThreads * kRowElems) visit(begin);
}

__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// A wrong index ends the GPU's work: the next call of the driver says so, with the op.
__device__ inline std::int64_t checked_index(std::int64_t index, std::int64_t limit) {
  if (index < 0 || index >= limit) __trap();
  return index;
}

/// `value` of all threads of the block, combined as a tree of fixed shape; every thread gets it. `shared`: kThreads of
/// R, free to use again when this returns.
template <class R, class Combine>
__device__ inline R block_reduce(R value, R* shared, const Combine& combine) {
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
