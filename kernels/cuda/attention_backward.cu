#include "kernels/cuda/attention_tile.h"

/// Dao 2023, backward, in bf16 on tensor cores. With P = exp(S - lse), S = scale q k^T and delta = rowsum(dout * out):
/// dv = P^T dout, dS = P (dout v^T - delta), dq = scale dS k, dk = scale dS^T q. Two kernels: blocks of queries add up
/// dq over the keys, blocks of keys dk and dv over the queries, of one query head after the other where heads share
/// keys, each in order, so that nothing is added by several blocks; scores are computed by both. The second one works
/// on transposes (keys by queries), so that P^T and dS^T are left operands as they lie in the registers. A probability
/// of kCertain or more counts as 1 in dS, which is 0 then (docs/decisions/0044).
namespace zs::cuda {
namespace {

// Probability from which on it counts as 1: what it is short of 1 by is less than what rounding `out` to bf16 leaves in
// delta.
constexpr float kCertain = 1 - 0x1.0p-10f;

/// Scores s and dout v^T ds of one element become the probability and the scores' gradient over scale.
__device__ inline void differentiate(float& s, float& ds, bool is_seen, float factor, float lse_log2, float delta) {
  s = is_seen ? exp2_of(fmaf(s, factor, -lse_log2)) : 0.0f;
  ds = s >= kCertain ? 0.0f : s * (ds - delta);
}

/// True if a query sees a key so many places before it.
__device__ inline bool is_seen(int distance, int window) {
  return static_cast<unsigned>(distance) < static_cast<unsigned>(window);
}

constexpr int kQueryTiles = 2, kQueriesOfWarp = 16 * kQueryTiles;

/// State of a lane's queries: lse over log 2, delta, and how many keys each sees.
struct QueryRows {
  float lse_log2[kQueryTiles][2], delta[kQueryTiles][2];
  int window;
};
__device__ inline QueryRows load_query_rows(const AttentionArgs& args, std::int64_t pair, std::int64_t first) {
  QueryRows rows;
  rows.window = static_cast<int>(args.window);
#pragma unroll
  for (int m = 0; m < kQueryTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = first + row_of(m, 2 * half);
      const bool is_there = row < args.time;
      rows.lse_log2[m][half] = is_there ? args.lse[pair * args.time + row] * kLog2E : 0.0f;
      rows.delta[m][half] = is_there ? args.delta[pair * args.time + row] : 0.0f;
    }
  return rows;
}

/// Adds kColumns keys' part to the gradients of a warp's queries. `ahead`: the warp's first query less the first of
/// these keys.
template <int kHeadDim, int kColumns>
__device__ inline void add_keys(float (&dq)[kQueryTiles][kHeadDim / 8][4], const QueryRows& rows, const Words* queries,
                                const Words* dout, int tile_row, const Words* keys, const Words* values, int key_row,
                                int ahead, float factor) {
  float s[kQueryTiles][kColumns / 8][4], ds[kQueryTiles][kColumns / 8][4];
  product_of_rows<kHeadDim, kQueryTiles, kColumns>(s, queries, tile_row, keys, key_row);
  product_of_rows<kHeadDim, kQueryTiles, kColumns>(ds, dout, tile_row, values, key_row);
#pragma unroll
  for (int m = 0; m < kQueryTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        differentiate(s[m][n][i], ds[m][n][i], is_seen(row_of(m, i) + ahead - column_of(n, i), rows.window), factor,
                      rows.lse_log2[m][i / 2], rows.delta[m][i / 2]);
  add_product<kHeadDim, kQueryTiles, kColumns>(dq, ds, keys, key_row);
}

template <int kHeadDim>
__device__ inline void attention_dqueries_block(const AttentionArgs& args) {
  constexpr int kQueries = kQueriesShape<kHeadDim>.own, kKeys = kQueriesShape<kHeadDim>.other;
  static_assert(kQueries == kAttentionThreads / kWarp * kQueriesOfWarp);
  constexpr int kColumns = kHeadDim == 64 ? 32 : 16;
  const std::int64_t blocks = (args.time + kQueries - 1) / kQueries, pair = blockIdx.x / blocks;
  const std::int64_t first = (blocks - 1 - blockIdx.x % blocks) * kQueries;  // blocks with most keys first
  const std::int64_t end = first + kQueries < args.time ? first + kQueries : args.time;
  Words* const queries = dynamic_shared();
  Words* const dout = queries + kQueries * kChunks<kHeadDim>;
  const KeyTiles<kHeadDim, kKeys> tiles{dout + kQueries * kChunks<kHeadDim>,
                                        rows_of_qkv(args, args.qkv, pair, Part::key),
                                        rows_of_qkv(args, args.qkv, pair, Part::value)};
  const int tile_row = warp_of_block() * kQueriesOfWarp;
  const std::int64_t warp_first = first + tile_row;

  copy_tile<kHeadDim, kQueries>(queries, rows_of_qkv(args, args.qkv, pair, Part::query), first, args.time);
  copy_tile<kHeadDim, kQueries>(dout, rows_of_out(args, args.dout, pair), first, args.time);
  const std::int64_t begin = first_key(args, first) / kKeys * kKeys;
  tiles.copy(begin, args.time);
  const QueryRows rows = load_query_rows(args, pair, warp_first);
  float dq[kQueryTiles][kHeadDim / 8][4];
  clear(dq);
  for (std::int64_t key = begin; key < end; key += kKeys) {
    wait_copies();
    __syncthreads();  // all copies are there, and nobody reads the other buffer any more
    if (key + kKeys < end) tiles.copy(key + kKeys, args.time);
    for (int column = 0; column < kKeys && key + column < warp_first + kQueriesOfWarp; column += kColumns)
      add_keys<kHeadDim, kColumns>(dq, rows, queries, dout, tile_row, tiles.keys_at(key), tiles.values_at(key), column,
                                   static_cast<int>(warp_first - key) - column, args.scale * kLog2E);
  }
  const float factor[kQueryTiles][2] = {{args.scale, args.scale}, {args.scale, args.scale}};
  store_rows<kHeadDim>(rows_of_qkv(args, args.dqkv, pair, Part::query), warp_first, args.time, queries, tile_row, dq,
                       factor);
}

/// Queries as they pass by: q and dout rows, lse and delta of each.
template <int kHeadDim, int kQueries>
struct QueryTile {
  Words *queries, *dout;
  float *lse, *delta;

  static __device__ inline QueryTile at(Words* buffers, int which) {
    constexpr int kTile = kQueries * kChunks<kHeadDim>;
    Words* const tile = buffers + which * 2 * kTile;
    float* const rows = reinterpret_cast<float*>(buffers + 4 * kTile) + which * 2 * kQueries;
    return {tile, tile + kTile, rows, rows + kQueries};
  }
  __device__ inline void copy(const AttentionArgs& args, std::int64_t pair, std::int64_t first) const {
    copy_tile<kHeadDim, kQueries>(queries, rows_of_qkv(args, args.qkv, pair, Part::query), first, args.time);
    copy_tile<kHeadDim, kQueries>(dout, rows_of_out(args, args.dout, pair), first, args.time);
    const int i = static_cast<int>(threadIdx.x) % kQueries;
    const bool is_there = first + i < args.time;
    const std::int64_t row = pair * args.time + (is_there ? first + i : 0);
    if (static_cast<int>(threadIdx.x) < kQueries)
      copy_async(lse + i, args.lse + row, is_there);
    else if (static_cast<int>(threadIdx.x) < 2 * kQueries)
      copy_async(delta + i, args.delta + row, is_there);
  }
};

/// Adds kColumns queries' part to the gradients of a warp's keys and values. `ahead`: the first of these queries less
/// the warp's first key.
template <int kHeadDim, int kKeyTiles, int kColumns, int kQueries>
__device__ inline void add_queries(float (&dk)[kKeyTiles][kHeadDim / 8][4], float (&dv)[kKeyTiles][kHeadDim / 8][4],
                                   const Words* keys, const Words* values, int tile_row,
                                   const QueryTile<kHeadDim, kQueries>& tile, int query_row, int ahead, int window,
                                   float factor) {
  float s[kKeyTiles][kColumns / 8][4], ds[kKeyTiles][kColumns / 8][4];
  product_of_rows<kHeadDim, kKeyTiles, kColumns>(s, keys, tile_row, tile.queries, query_row);
  product_of_rows<kHeadDim, kKeyTiles, kColumns>(ds, values, tile_row, tile.dout, query_row);
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = column_of(n, i);
      const float lse_log2 = tile.lse[query_row + query] * kLog2E, delta = tile.delta[query_row + query];
#pragma unroll
      for (int m = 0; m < kKeyTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          differentiate(s[m][n][i + 2 * half], ds[m][n][i + 2 * half],
                        is_seen(query + ahead - row_of(m, 2 * half), window), factor, lse_log2, delta);
    }
  add_product<kHeadDim, kKeyTiles, kColumns>(dv, s, tile.dout, query_row);
  add_product<kHeadDim, kKeyTiles, kColumns>(dk, ds, tile.queries, query_row);
}

template <int kHeadDim>
__device__ inline void attention_dkeys_block(const AttentionArgs& args) {
  constexpr int kKeys = kKeysShape<kHeadDim>.own, kQueries = kKeysShape<kHeadDim>.other;
  constexpr int kKeysOfWarp = kKeys / (kAttentionThreads / kWarp), kKeyTiles = kKeysOfWarp / 16, kColumns = 16;
  using Queries = QueryTile<kHeadDim, kQueries>;
  static_assert(2 * kQueries <= kAttentionThreads);
  const std::int64_t blocks = (args.time + kKeys - 1) / kKeys, group = args.heads / args.kv_heads;
  const std::int64_t first_pair = blockIdx.x / blocks * group, end = first_pair + group;
  const std::int64_t first = blockIdx.x % blocks * kKeys;  // blocks with most queries first
  const std::int64_t query_end = end_of_queries(args, first + kKeys);
  Words* const keys = dynamic_shared();
  Words* const values = keys + kKeys * kChunks<kHeadDim>;
  Words* const buffers = values + kKeys * kChunks<kHeadDim>;
  const int tile_row = warp_of_block() * kKeysOfWarp;
  const std::int64_t warp_first = first + tile_row;

  copy_tile<kHeadDim, kKeys>(keys, rows_of_qkv(args, args.qkv, first_pair, Part::key), first, args.time);
  copy_tile<kHeadDim, kKeys>(values, rows_of_qkv(args, args.qkv, first_pair, Part::value), first, args.time);
  Queries::at(buffers, 0).copy(args, first_pair, first);
  float dk[kKeyTiles][kHeadDim / 8][4], dv[kKeyTiles][kHeadDim / 8][4];
  clear(dk);
  clear(dv);
  int now = 0;
  for (std::int64_t pair = first_pair, query = first; pair < end; now = 1 - now) {
    wait_copies();
    __syncthreads();  // all copies are there, and nobody reads the other buffer any more
    const bool is_last = query + kQueries >= query_end;  // last tile of this head
    const std::int64_t next_pair = is_last ? pair + 1 : pair, next_query = is_last ? first : query + kQueries;
    if (next_pair < end) Queries::at(buffers, 1 - now).copy(args, next_pair, next_query);
    const Queries tile = Queries::at(buffers, now);
    for (int column = 0; column < kQueries; column += kColumns)
      if (query + column + kColumns > warp_first)  // else no query sees this warp's keys
        add_queries<kHeadDim, kKeyTiles, kColumns>(dk, dv, keys, values, tile_row, tile, column,
                                                   static_cast<int>(query - warp_first) + column,
                                                   static_cast<int>(args.window), args.scale * kLog2E);
    pair = next_pair;
    query = next_query;
  }
  float scale[kKeyTiles][2], one[kKeyTiles][2];
#pragma unroll
  for (int m = 0; m < kKeyTiles; ++m) {
    scale[m][0] = scale[m][1] = args.scale;
    one[m][0] = one[m][1] = 1.0f;
  }
  store_rows<kHeadDim>(rows_of_qkv(args, args.dqkv, first_pair, Part::key), warp_first, args.time, keys, tile_row, dk,
                       scale);
  store_rows<kHeadDim>(rows_of_qkv(args, args.dqkv, first_pair, Part::value), warp_first, args.time, values, tile_row,
                       dv, one);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kAttentionThreads) zs_attention_dqueries_64(const AttentionArgs args) {
  attention_dqueries_block<64>(args);
}
extern "C" __global__ void __launch_bounds__(kAttentionThreads) zs_attention_dqueries_128(const AttentionArgs args) {
  attention_dqueries_block<128>(args);
}
extern "C" __global__ void __launch_bounds__(kAttentionThreads) zs_attention_dkeys_64(const AttentionArgs args) {
  attention_dkeys_block<64>(args);
}
extern "C" __global__ void __launch_bounds__(kAttentionThreads) zs_attention_dkeys_128(const AttentionArgs args) {
  attention_dkeys_block<128>(args);
}

}  // namespace zs::cuda
