#pragma once

#include "kernels/cpu/vec.h"

/// Products of bf16 by the processor's tiles (AMX), summed in f32. Operands are packed so that nothing has a remainder:
/// rows, columns and depths are multiples of 32. Tiles flush subnormal numbers to zero.
namespace zs::cpu::ZS_ISA {

/// Rows and columns of the block of C that one pass holds in tiles, and the depth that one instruction multiplies.
constexpr std::int64_t kBlock = 32;
constexpr std::int64_t kHalf = kBlock / 2;  // rows of a tile; f32 or pairs of bf16 in its rows

/// Tiles are set up for this thread while it lives.
class TileScope {
 public:
  TileScope() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t bytes_a_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const shapes;
    __asm__ volatile("" ::"r"(&shapes) : "memory");  // GCC 12 sees that the next line reads a word of it only
    _tile_loadconfig(&shapes);
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

/// A left operand: rows of bf16, `stride` elements apart.
struct AmxLeft {
  const Bf16* address;
  std::int64_t stride;
};
/// 32 columns of a right operand: word (k, c) at address[k * 32 + c] holds rows 2k and 2k + 1 of column c.
using AmxPanel = const std::uint32_t*;
struct AmxResult {
  float* address;
  std::int64_t stride;
};

/// c (32, 32) := [c +] a (32, depth) * b (depth, 32).
template <bool kAdd>
inline void amx_block(AmxResult c, AmxLeft a, AmxPanel b, std::int64_t depth) {
  float *const upper = c.address, *const lower = c.address + kHalf * c.stride;
  const std::size_t c_bytes = static_cast<std::size_t>(c.stride) * sizeof(float),
                    a_bytes = static_cast<std::size_t>(a.stride) * sizeof(Bf16);
  constexpr std::size_t kPanelBytes = kBlock * sizeof(std::uint32_t);
  __asm__ volatile("" ::: "memory");  // GCC 12 does not see that loads of tiles read memory
  if constexpr (kAdd) {
    _tile_loadd(0, upper, c_bytes);
    _tile_loadd(1, upper + kHalf, c_bytes);
    _tile_loadd(2, lower, c_bytes);
    _tile_loadd(3, lower + kHalf, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t k = 0; k < depth; k += kBlock) {
    _tile_loadd(4, a.address + k, a_bytes);
    _tile_loadd(6, b + k / 2 * kBlock, kPanelBytes);
    _tile_loadd(7, b + k / 2 * kBlock + kHalf, kPanelBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a.address + kHalf * a.stride + k, a_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, upper, c_bytes);
  _tile_stored(1, upper + kHalf, c_bytes);
  _tile_stored(2, lower, c_bytes);
  _tile_stored(3, lower + kHalf, c_bytes);
}

/// 16 x 16 words, transposed; strides in words.
inline void transpose_words(std::uint32_t* out, std::int64_t out_stride, const std::uint32_t* in,
                            std::int64_t in_stride) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(in + i * in_stride);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_maskz_unpacklo_epi32(0xffff, r[i], r[i + 1]);
    t[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int half = 0; half < 2; ++half) {
      r[i + 2 * half] = _mm512_maskz_unpacklo_epi64(0xff, t[i + half], t[i + half + 2]);
      r[i + 2 * half + 1] = _mm512_maskz_unpackhi_epi64(0xff, t[i + half], t[i + half + 2]);
    }
  }
  for (int j = 0; j < 4; ++j) {  // lane l of r[4 i + j] is column 4 l + j of rows 4 i .. 4 i + 3
    const __m512i a = _mm512_maskz_shuffle_i32x4(0xffff, r[j], r[4 + j], 0x88),
                  b = _mm512_maskz_shuffle_i32x4(0xffff, r[8 + j], r[12 + j], 0x88);
    const __m512i c = _mm512_maskz_shuffle_i32x4(0xffff, r[j], r[4 + j], 0xdd),
                  d = _mm512_maskz_shuffle_i32x4(0xffff, r[8 + j], r[12 + j], 0xdd);
    _mm512_storeu_si512(out + j * out_stride, _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0x88));
    _mm512_storeu_si512(out + (4 + j) * out_stride, _mm512_maskz_shuffle_i32x4(0xffff, c, d, 0x88));
    _mm512_storeu_si512(out + (8 + j) * out_stride, _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0xdd));
    _mm512_storeu_si512(out + (12 + j) * out_stride, _mm512_maskz_shuffle_i32x4(0xffff, c, d, 0xdd));
  }
}

/// Two rows of 32 bf16 as one row of a panel.
inline void interleave(std::uint32_t* out, __m512i even, __m512i odd) {
  const __m512i low = _mm512_maskz_unpacklo_epi16(~0u, even, odd), high = _mm512_maskz_unpackhi_epi16(~0u, even, odd);
  const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0),
                second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  _mm512_storeu_si512(out, _mm512_maskz_permutex2var_epi64(0xff, low, first, high));
  _mm512_storeu_si512(out + 16, _mm512_maskz_permutex2var_epi64(0xff, low, second, high));
}

/// Packs `in` (depth, columns), row-major and dense, to panels (columns / 32) of (depth / 2, 32) words.
inline void pack_panels(std::uint32_t* out, const Bf16* in, std::int64_t depth, std::int64_t columns) {
  for (std::int64_t c = 0; c < columns; c += kBlock)
    for (std::int64_t k = 0; k < depth; k += 2)
      interleave(out + (c * depth + k * kBlock) / 2, _mm512_loadu_si512(in + k * columns + c),
                 _mm512_loadu_si512(in + (k + 1) * columns + c));
}

/// The panels of the transpose of in (columns, depth), row-major and dense.
inline void pack_transposed(std::uint32_t* out, const Bf16* in, std::int64_t depth, std::int64_t columns) {
  for (std::int64_t c = 0; c < columns; c += kHalf)
    for (std::int64_t k = 0; k < depth; k += kBlock)
      transpose_words(out + (c / kBlock * kBlock * depth + k * kBlock) / 2 + c % kBlock, kBlock,
                      reinterpret_cast<const std::uint32_t*>(in + c * depth + k), depth / 2);
}

/// 32 floats to bf16, rounded to nearest even.
inline __m512i narrow(Vec low, Vec high) { return (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low); }

/// rows (time, head_dim) of one head, token_stride elements apart, to (padded_time, width), padded with zeros.
inline void copy_rows(Bf16* out, std::int64_t width, const Bf16* in, std::int64_t token_stride,
                      std::int64_t padded_time, const AttentionDims& dims) {
  for (std::int64_t t = 0; t < padded_time; ++t) {
    const std::int64_t count = t < dims.time ? dims.head_dim : 0;
    __builtin_memcpy(out + t * width, in + t * token_stride, static_cast<std::size_t>(count) * sizeof(Bf16));
    __builtin_memset(out + t * width + count, 0, static_cast<std::size_t>(width - count) * sizeof(Bf16));
  }
}

}  // namespace zs::cpu::ZS_ISA
