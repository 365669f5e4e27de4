#pragma once

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/warp.h"

/// Tiles of bf16 rows in shared memory, and their products on tensor cores. A row is kHeadDim elements, in chunks of 16
/// bytes; chunk c of row r lies at c ^ (r mod 8), so that eight rows' same chunk, which is what a warp reads at once,
/// are in different banks.
namespace zs::cuda {

template <int kHeadDim>
inline constexpr int kChunks = kHeadDim / 8;

/// Begins to copy kRows rows from row `first` on; zeros after the last one.
template <int kHeadDim, int kRows>
__device__ inline void copy_tile(Words* tile, const HeadRows& rows, std::int64_t first, std::int64_t time) {
#pragma unroll 1  // unrolled, its addresses take the registers that products need
  for (int round = 0; round < kRows * kChunks<kHeadDim> / kAttentionThreads; ++round) {
    const int i = round * kAttentionThreads + static_cast<int>(threadIdx.x);
    const int row = i / kChunks<kHeadDim>, chunk = i % kChunks<kHeadDim>;
    const bool is_there = first + row < time;
    const Bf16* const from =
        static_cast<const Bf16*>(rows.data) + rows.first + (is_there ? first + row : 0) * rows.stride + chunk * 8;
    copy_async(tile + row * kChunks<kHeadDim> + (chunk ^ (row & 7)), reinterpret_cast<const Words*>(from), is_there);
  }
}

/// Tiles of the keys and of the values that pass by, two of each: one is worked on while the next is on its way.
template <int kHeadDim, int kKeys>
struct KeyTiles {
  static constexpr int kTile = kKeys * kChunks<kHeadDim>;
  Words* buffers;  // keys, values; keys, values
  HeadRows keys, values;

  __device__ inline Words* keys_at(std::int64_t key) const {
    return buffers + static_cast<int>(key / kKeys) % 2 * 2 * kTile;
  }
  __device__ inline Words* values_at(std::int64_t key) const { return keys_at(key) + kTile; }
  /// Copies keys and values from `key` on.
  __device__ inline void copy(std::int64_t key, std::int64_t time) const {
    copy_tile<kHeadDim, kKeys>(keys_at(key), keys, key, time);
    copy_tile<kHeadDim, kKeys>(values_at(key), values, key, time);
  }
};

// The operands of products, 16 rows from `row` on, chunks `chunk` and the next: row is a multiple of 8, chunk of 2.

/// Rows times depth: a left operand.
template <int kHeadDim>
__device__ inline void load_left(std::uint32_t (&a)[4], const Words* tile, int row, int chunk) {
  const int lane = lane_of_warp();
  load_matrices(a, tile + (row + (lane & 15)) * kChunks<kHeadDim> + (chunk ^ (lane >> 4) ^ (lane & 7)));
}
/// The transpose of rows times depth: right operands of columns row .. row + 7 (b[0], b[1]) and the next eight (b[2],
/// b[3]).
template <int kHeadDim>
__device__ inline void load_right(std::uint32_t (&b)[4], const Words* tile, int row, int chunk) {
  const int lane = lane_of_warp();
  load_matrices(
      b, tile + (row + (lane & 7) + (lane >> 4) * 8) * kChunks<kHeadDim> + (chunk ^ ((lane >> 3) & 1) ^ (lane & 7)));
}
/// Depth times columns: right operands of the columns of `chunk` (b[0], b[1]) and of the next one (b[2], b[3]).
template <int kHeadDim>
__device__ inline void load_right_transposed(std::uint32_t (&b)[4], const Words* tile, int row, int chunk) {
  const int lane = lane_of_warp();
  load_matrices_transposed(b, tile + (row + (lane & 15)) * kChunks<kHeadDim> + (chunk ^ (lane >> 4) ^ (lane & 7)));
}

template <int kRowTiles, int kColumns>
__device__ inline void clear(float (&c)[kRowTiles][kColumns][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
}

/// c (16 kRowTiles, kColumns) := rows of `left` times the transpose of rows of `right`.
template <int kHeadDim, int kRowTiles, int kColumns>
__device__ inline void product_of_rows(float (&c)[kRowTiles][kColumns / 8][4], const Words* left, int left_row,
                                       const Words* right, int right_row) {
  clear(c);
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    std::uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) load_left<kHeadDim>(a[m], left, left_row + 16 * m, 2 * k);
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      std::uint32_t b[4];
      load_right<kHeadDim>(b, right, right_row + 16 * n, 2 * k);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply(c[m][2 * n], a[m], b[0], b[1]);
        multiply(c[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// c (16 kRowTiles, kHeadDim) += a (16 kRowTiles, kDepth) times kDepth rows of `right`. a is a product's result, as it
/// lies in the lanes: two of its blocks of eight columns are one left operand.
template <int kHeadDim, int kRowTiles, int kDepth>
__device__ inline void add_product(float (&c)[kRowTiles][kHeadDim / 8][4], const float (&a)[kRowTiles][kDepth / 8][4],
                                   const Words* right, int right_row) {
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    std::uint32_t left[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        left[m][i] = pack_bf16(a[m][2 * k + i / 2][i % 2 * 2], a[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; ++n) {
      std::uint32_t b[4];
      load_right_transposed<kHeadDim>(b, right, right_row + 16 * k, 2 * n);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply(c[m][2 * n], left[m], b[0], b[1]);
        multiply(c[m][2 * n + 1], left[m], b[2], b[3]);
      }
    }
  }
}

/// A lane's rows of a product: row(m, i) of its elements i = 0 .. 3 in block m of 16 rows, column(n, i) in block n of 8
/// columns.
__device__ inline int row_of(int m, int i) { return 16 * m + (lane_of_warp() >> 2) + i / 2 * 8; }
__device__ inline int column_of(int n, int i) { return 8 * n + lane_of_warp() % 4 * 2 + i % 2; }

/// (warp) Rows `first` .. of the head := c times factor, each row its own; by way of this warp's rows of a tile that
/// nobody reads any more.
template <int kHeadDim, int kRowTiles>
__device__ inline void store_rows(const HeadRows& rows, std::int64_t first, std::int64_t time, Words* tile,
                                  int tile_row, const float (&c)[kRowTiles][kHeadDim / 8][4],
                                  const float (&factor)[kRowTiles][2]) {
  sync_warp();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile_row + row_of(m, 2 * half);
        tile[row * kChunks<kHeadDim> + (n ^ (row & 7))].w[lane_of_warp() % 4] =
            pack_bf16(c[m][n][2 * half] * factor[m][half], c[m][n][2 * half + 1] * factor[m][half]);
      }
  sync_warp();
#pragma unroll
  for (int round = 0; round < 16 * kRowTiles * kChunks<kHeadDim> / kWarp; ++round) {
    const int i = round * kWarp + lane_of_warp();
    const int row = i / kChunks<kHeadDim>, chunk = i % kChunks<kHeadDim>, at = tile_row + row;
    if (first + row < time)
      *reinterpret_cast<Words*>(static_cast<Bf16*>(rows.data) + rows.first + (first + row) * rows.stride + chunk * 8) =
          tile[at * kChunks<kHeadDim> + (chunk ^ (at & 7))];
  }
}

}  // namespace zs::cuda
