#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.h"

/// A row of elements for each warp, whose lanes take every 32nd pack. Either way a lane adds up its elements in the
/// same order, so that the bits are the same.
namespace zs::cuda {

inline constexpr int kWarps = kThreads / kWarp, kWarpElems = kWarp * kRowElems;

/// (warp) The lanes' sum, which all get.
__device__ inline float warp_sum(float value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value += shuffle_xor(value, lanes);
  return value;
}

/// A pack of elements of T as it is in memory.
template <class T>
struct RawPack {
  static constexpr int kWords = kRowElems * sizeof(T) / sizeof(Words);
  Words words[kWords];
};
template <class T>
__device__ inline RawPack<T> load_raw(const void* data, std::int64_t at) {
  RawPack<T> pack;
  const auto* const from = reinterpret_cast<const Words*>(static_cast<const T*>(data) + at);
#pragma unroll
  for (int i = 0; i < RawPack<T>::kWords; ++i) pack.words[i] = from[i];
  return pack;
}
template <class T>
__device__ inline void unpack(const RawPack<T>& pack, float (&out)[kRowElems]) {
  load_pack(reinterpret_cast<const T*>(pack.words), out);
}

/// Row that is held in registers, at most kPacks packs a lane: all of them are asked for before the first is used. All
/// of a row's operands are whole packs of T from 16-byte boundaries on.
template <class T, int kPacks>
class HeldRow {
 public:
  using P = Packs<T, true>;

  __device__ HeldRow(const void* data, std::int64_t first, std::int64_t width) {
    for_each(width, [&](std::int64_t begin, int p) { packs_[p] = load_raw<T>(data, first + begin); });
  }

  /// visit(begin, p) for the lane's packs.
  template <class Visit>
  __device__ static void for_each(std::int64_t width, const Visit& visit) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t begin = p * kWarpElems + lane_of_warp() * kRowElems;
      if (begin < width) visit(begin, p);
    }
  }
  /// The number of elements.
  __device__ int get(std::int64_t, int p, float (&out)[kRowElems]) const {
    unpack(packs_[p], out);
    return kRowElems;
  }
  /// Stores elements elsewhere, which take the row's place.
  __device__ void put(std::int64_t, int p, const float (&in)[kRowElems]) {
    store_pack(reinterpret_cast<T*>(packs_[p].words), in);
  }
  __device__ void move_to(const void*) {}

 private:
  RawPack<T> packs_[kPacks];
};

/// Read again by every visit, of any width.
template <class Packs>
class ReadRow {
 public:
  using P = Packs;

  __device__ ReadRow(const void* data, std::int64_t first, std::int64_t width)
      : data_(data), first_(first), end_(first + width) {}

  template <class Visit>
  __device__ static void for_each(std::int64_t width, const Visit& visit) {
    for (std::int64_t begin = lane_of_warp() * kRowElems; begin < width; begin += kWarpElems) visit(begin, 0);
  }

  __device__ int get(std::int64_t begin, int, float (&out)[kRowElems]) const {
    return P::load(data_, first_ + begin, end_, out);
  }
  __device__ void put(std::int64_t, int, const float (&)[kRowElems]) {}
  __device__ void move_to(const void* data) { data_ = data; }

 private:
  const void* data_;
  std::int64_t first_, end_;
};

}  // namespace zs::cuda
