#include "kernels/cuda/attention_tile.h"

/// Dao 2023 (FlashAttention-2), forward, in bf16 on tensor cores: a block has 128 queries, each warp 32 of them, and
/// reads the keys and values they see in tiles; the next one is on its way while one is worked on. Scores, sums and
/// results stay in registers.
namespace zs::cuda {
namespace {

constexpr int kRowTiles = 2, kWarpRows = 16 * kRowTiles;

/// State of each of a lane's rows: the largest score so far, and this lane's part of the sum of exponentials.
struct Softmax {
  float largest[kRowTiles][2], sums[kRowTiles][2];
};

/// The largest, or the sum, of a row's values in the four lanes that hold it.
__device__ inline float largest_of_row(float value) {
  value = fmaxf(value, shuffle_xor(value, 1));
  return fmaxf(value, shuffle_xor(value, 2));
}
__device__ inline float sum_of_row(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

/// Scores of keys after a query, or before its window, are minus infinity.
template <int kKeys>
__device__ inline void mask_scores(float (&s)[kRowTiles][kKeys / 8][4], std::int64_t first_query, std::int64_t key,
                                   std::int64_t window) {
  const int ahead = static_cast<int>(first_query - key), behind = ahead - static_cast<int>(window);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (column_of(n, i) > row_of(m, i) + ahead || column_of(n, i) <= row_of(m, i) + behind)
          s[m][n][i] = kMinusInfinity;
}

/// s becomes 2^(factor (s - largest)), and what the rows have gathered so far is rescaled. A row that has seen no key
/// yet has gathered zeros, and goes on with them.
template <int kHeadDim, int kKeys>
__device__ inline void softmax_tile(Softmax& softmax, float (&s)[kRowTiles][kKeys / 8][4],
                                    float (&result)[kRowTiles][kHeadDim / 8][4], float factor) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = softmax.largest[m][half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) largest = fmaxf(largest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      largest = largest_of_row(largest);
      const float base = largest == kMinusInfinity ? 0.0f : largest;
      const float shrink = exp2_of((softmax.largest[m][half] - base) * factor), shift = -base * factor;
      float sum = softmax.sums[m][half] * shrink;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[m][n][i] = exp2_of(fmaf(s[m][n][i], factor, shift));
          sum += s[m][n][i];
        }
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) result[m][n][i] *= shrink;
      softmax.largest[m][half] = largest;
      softmax.sums[m][half] = sum;
    }
}

/// Divides by the sums; stores the results and log-sum-exp of the warp's rows.
template <int kHeadDim>
__device__ inline void finish_rows(const AttentionArgs& args, std::int64_t pair, std::int64_t first, Words* queries,
                                   int tile_row, const Softmax& softmax,
                                   const float (&result)[kRowTiles][kHeadDim / 8][4]) {
  float inverse[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(softmax.sums[m][half]);
      const std::int64_t row = first + row_of(m, 2 * half);
      inverse[m][half] = 1.0f / sum;
      if (lane_of_warp() % 4 == 0 && row < args.time)
        args.lse[pair * args.time + row] = softmax.largest[m][half] * args.scale + logf(sum);
    }
  store_rows<kHeadDim>(rows_of_out(args, args.out, pair), first, args.time, queries, tile_row, result, inverse);
}

template <int kHeadDim>
__device__ inline void attention_forward_block(const AttentionArgs& args) {
  constexpr int kQueries = kForwardShape<kHeadDim>.own, kKeys = kForwardShape<kHeadDim>.other;
  static_assert(kQueries == kAttentionThreads / kWarp * kWarpRows);
  const std::int64_t blocks = (args.time + kQueries - 1) / kQueries, pair = blockIdx.x / blocks;
  const std::int64_t first = (blocks - 1 - blockIdx.x % blocks) * kQueries;  // blocks with most keys first
  const std::int64_t end = first + kQueries < args.time ? first + kQueries : args.time;
  Words* const queries = dynamic_shared();
  const KeyTiles<kHeadDim, kKeys> tiles{queries + kQueries * kChunks<kHeadDim>,
                                        rows_of_qkv(args, args.qkv, pair, Part::key),
                                        rows_of_qkv(args, args.qkv, pair, Part::value)};
  const int tile_row = warp_of_block() * kWarpRows;
  const std::int64_t warp_first = first + tile_row;

  copy_tile<kHeadDim, kQueries>(queries, rows_of_qkv(args, args.qkv, pair, Part::query), first, args.time);
  const std::int64_t begin = first_key(args, first) / kKeys * kKeys;
  tiles.copy(begin, args.time);
  Softmax softmax;
  float result[kRowTiles][kHeadDim / 8][4];
  clear(result);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      softmax.largest[m][half] = kMinusInfinity;
      softmax.sums[m][half] = 0.0f;
    }
  for (std::int64_t key = begin; key < end; key += kKeys) {
    wait_copies();
    __syncthreads();  // all copies are there, and nobody reads the other buffer any more
    if (key + kKeys < end) tiles.copy(key + kKeys, args.time);
    if (key >= warp_first + kWarpRows || key + kKeys <= first_key(args, warp_first))
      continue;  // no query of this warp sees these keys
    float s[kRowTiles][kKeys / 8][4];
    product_of_rows<kHeadDim, kRowTiles, kKeys>(s, queries, tile_row, tiles.keys_at(key), 0);
    if (key + kKeys - 1 > warp_first || key < first_key(args, warp_first + kWarpRows - 1))
      mask_scores<kKeys>(s, warp_first, key, args.window);
    softmax_tile<kHeadDim, kKeys>(softmax, s, result, args.scale * kLog2E);
    add_product<kHeadDim, kRowTiles, kKeys>(result, s, tiles.values_at(key), 0);
  }
  finish_rows<kHeadDim>(args, pair, warp_first, queries, tile_row, softmax, result);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kAttentionThreads) zs_attention_forward_64(const AttentionArgs args) {
  attention_forward_block<64>(args);
}
extern "C" __global__ void __launch_bounds__(kAttentionThreads) zs_attention_forward_128(const AttentionArgs args) {
  attention_forward_block<128>(args);
}

}  // namespace zs::cuda
