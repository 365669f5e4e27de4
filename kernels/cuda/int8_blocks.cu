#include "kernels/cuda/warp.h"
#include "kernels/fp8.h"

/// Elements as integers (runtime/base/int8_blocks.h), or in e4m3 in the same blocks, the same bits as the CPU's.
namespace zs::cuda {
namespace {

/// Magnitude below which a block is zero: its scale would lose its digits.
constexpr float kLeastMagnitude = 1e-35f;
constexpr std::uint32_t kInfinityBits = 0x7f800000u, kNanBits = 0x7fc00000u;
/// Threads that share a block of elements: half a warp.
constexpr int kBlockThreads = kInt8Block / kInt8Elems;

/// Piece that a thread works on: kInt8Elems elements of a slice from `at` on. After the last slice there are none.
struct Piece {
  std::int64_t slice, at, begin, end;  // range of the elements of all slices: [begin, end), empty where begin >= end
};

__device__ inline Piece piece_of(const Int8Args& args) {
  const std::int64_t thread = global_thread();
  const std::int64_t a_slice = (args.elems + kInt8Block - 1) / kInt8Block * kBlockThreads;
  const std::int64_t slice = args.slices == 1 ? thread >= a_slice : thread / a_slice;
  const std::int64_t at = (thread - slice * a_slice) * kInt8Elems, begin = slice * args.elems + at;
  return {slice, at, begin, slice < args.slices ? (slice + 1) * args.elems : begin};
}

/// The largest magnitude of the block; infinity where an element is not finite. All threads of the warp come here.
__device__ inline float most_of(const float (&x)[kInt8Elems]) {
  float most = 0.0f;
  for (int i = 0; i < kInt8Elems; ++i) {
    const std::uint32_t word = bits_of(x[i]) & 0x7fffffffu;
    const float magnitude = float_of(word < kInfinityBits ? word : kInfinityBits);
    most = magnitude > most ? magnitude : most;
  }
  for (int lanes = kBlockThreads / 2; lanes > 0; lanes /= 2) {
    const float other = shuffle_xor(most, lanes);
    most = other > most ? other : most;
  }
  return most;
}

/// Encoding of a byte as a signed integer.
struct Whole {
  static constexpr float kMost = 127.0f;
  __device__ static std::uint32_t byte_of(float x) {
    const float value = rintf(x);
    const float kept = value > kMost ? kMost : value < -kMost ? -kMost : value;
    return static_cast<std::uint32_t>(static_cast<int>(kept)) & 0xffu;
  }
  __device__ static float value_of(std::uint32_t byte) { return static_cast<float>(static_cast<std::int8_t>(byte)); }
};
/// Encoding of a byte as a number in e4m3.
struct E4m3 {
  static constexpr float kMost = kMostE4m3;
  __device__ static std::uint32_t byte_of(float x) { return e4m3_of(bits_of(x)); }
  __device__ static float value_of(std::uint32_t byte) { return float_of(bits_of_e4m3(byte & 0xffu)); }
};

template <class Code, class T>
__device__ inline void pack_blocks(const Int8Args& args) {
  const Piece piece = piece_of(args);
  float x[kInt8Elems];
  const int count = load_some<T>(args.data, piece.begin, piece.end, args.is_aligned, x);
  const float most = most_of(x);
  if (count <= 0) return;
  const bool is_finite = bits_of(most) < kInfinityBits, is_zero = most < kLeastMagnitude;
  const float scale = !is_finite ? float_of(kNanBits) : is_zero ? 0.0f : most / Code::kMost;
  const float inverse = is_finite && !is_zero ? 1.0f / scale : 0.0f;
  Words words;
  for (int w = 0; w < 4; ++w) {
    words.w[w] = 0;
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t byte = inverse > 0.0f ? Code::byte_of(x[4 * w + i] * inverse) : 0u;
      words.w[w] |= byte << (8 * i);
    }
  }
  std::int8_t* const packed = args.packed + piece.slice * args.stride;
  if (piece.at % kInt8Block == 0)
    *reinterpret_cast<float*>(packed + args.scales_at + piece.at / kInt8Block * 4) = scale;
  if (count == kInt8Elems) {
    *reinterpret_cast<Words*>(packed + piece.at) = words;
    return;
  }
  for (int i = 0; i < kInt8Elems; ++i)
    if (i < count) packed[piece.at + i] = static_cast<std::int8_t>(words.w[i / 4] >> (8 * (i % 4)));
}

/// Slice s of the elements := [itself +] parts s * parts .. of the packed, in their order.
template <class Code, class T>
__device__ inline void reduce_blocks(const Int8Args& args) {
  const Piece piece = piece_of(args);
  if (piece.begin >= piece.end) return;
  float sums[kInt8Elems];
  if (args.accumulates) load_some<T>(args.data, piece.begin, piece.end, args.is_aligned, sums);
  const bool is_whole = piece.begin + kInt8Elems <= piece.end;
  const std::int8_t* packed = args.packed + piece.slice * args.parts * args.stride;
  for (int p = 0; p < args.parts; ++p, packed += args.stride) {
    const float scale = *reinterpret_cast<const float*>(packed + args.scales_at + piece.at / kInt8Block * 4);
    Words words = {};
    if (is_whole) {
      words = *reinterpret_cast<const Words*>(packed + piece.at);
    } else {
      for (int i = 0; i < kInt8Elems; ++i)
        if (piece.begin + i < piece.end) words.w[i / 4] |= (packed[piece.at + i] & 0xffu) << (8 * (i % 4));
    }
    const bool is_first = p == 0 && !args.accumulates;
    for (int i = 0; i < kInt8Elems; ++i) {
      const float value = scale * Code::value_of(words.w[i / 4] >> (8 * (i % 4)));
      sums[i] = is_first ? value : sums[i] + value;
    }
  }
  for (int i = 0; i < kInt8Elems; ++i)
    if (!(sums[i] == sums[i])) sums[i] = float_of(kNanBits);  // processors differ in theirs
  with_packs<T>(args.is_aligned && is_whole, [&](auto packs) { packs.store(args.data, piece.begin, piece.end, sums); });
}

}  // namespace

ZS_KERNEL(zs_pack_int8, Int8Args, pack_blocks<Whole, T>(args))
ZS_KERNEL(zs_reduce_int8, Int8Args, reduce_blocks<Whole, T>(args))
ZS_KERNEL(zs_pack_fp8, Int8Args, pack_blocks<E4m3, T>(args))
ZS_KERNEL(zs_unpack_fp8, Int8Args, reduce_blocks<E4m3, T>(args))

}  // namespace zs::cuda
