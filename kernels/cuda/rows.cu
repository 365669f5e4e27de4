#include "kernels/cuda/warp_rows.h"

/// Embedding rows, and sums over rows.
namespace zs::cuda {
namespace {

/// (warp) Whether a token before `token` has its id.
__device__ bool has_come_before(const ScatterArgs& args, std::int64_t token, std::int32_t id) {
  constexpr int kAtOnce = 4;
  for (std::int64_t first = 0; first < token; first += kAtOnce * kWarp) {
    bool is_found = false;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int64_t other = first + k * kWarp + lane_of_warp();
      is_found |= other < token && args.ids[other] == id;
    }
    if (vote(is_found) != 0) return true;
  }
  return false;
}

/// (warp) Bit t: whether token first + t is `id`.
__device__ std::uint64_t tokens_of(const ScatterArgs& args, std::int64_t first, std::int32_t id) {
  const std::int64_t low = first + lane_of_warp(), high = low + kWarp;
  const std::uint32_t of_low = vote(low < args.rows.count && args.ids[low] == id),
                      of_high = vote(high < args.rows.count && args.ids[high] == id);
  return of_low | static_cast<std::uint64_t>(of_high) << kWarp;
}

/// (warp) Adds the rows of all tokens from `token` on that are `id`, in their order, to a pack of columns for each
/// lane; rounded after every addition, as one row after the other would be. Some rows are asked for together.
template <class Packs>
__device__ void add_rows_of_id(const ScatterArgs& args, std::int64_t token, std::int32_t id, std::int64_t begin) {
  constexpr int kAtOnce = 4, kTokens = 2 * kWarp;
  const std::int64_t width = args.rows.width, row_of_table = id * width;
  const bool has_columns = begin < width;
  float sum[kRowElems] = {};
  if (has_columns) load_some(args.table, row_of_table + begin, row_of_table + width, args.is_aligned, sum);
  for (std::int64_t first = token / kTokens * kTokens; first < args.rows.count; first += kTokens) {
    std::uint64_t found = tokens_of(args, first, id);
    while (found != 0) {
      float rows[kAtOnce][kRowElems] = {};
      std::uint64_t asked = found;
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k, asked &= asked - 1) {
        const std::int64_t row = first + __ffsll(static_cast<long long>(asked)) - 1;
        if (asked != 0 && has_columns) Packs::load(args.dy, row * width + begin, (row + 1) * width, rows[k]);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k, found &= found - 1)
        for (int i = 0; i < kRowElems; ++i) sum[i] = found != 0 ? rounded(sum[i] + rows[k][i], args.table) : sum[i];
    }
  }
  if (has_columns) store_some(args.table, row_of_table + begin, row_of_table + width, args.is_aligned, sum);
}

enum class Sums { bias, layer_norm, rms_norm };

/// Sums of one part's rows, of a pack of columns for each lane: see ColumnSumsArgs. Those of the block's warps are
/// added in order.
template <Sums kSums, class Packs>
__device__ void sum_columns(const ColumnSumsArgs& args, std::int64_t part, std::int64_t first_column,
                            float (&shared)[2][kRowElems][kThreads]) {
  constexpr int kCount = kSums == Sums::layer_norm ? 2 : 1, kXhat = 0, kDy = kCount - 1;
  const std::int64_t width = args.rows.width, begin = first_column + lane_of_warp() * kRowElems;
  float sums[kCount][kRowElems] = {};
  if (begin < width) {
#pragma unroll 4
    for (std::int64_t row = part * kWarps + warp_of_block(); row < args.rows.count; row += args.count * kWarps) {
      float dy[kRowElems], x[kRowElems];
      Packs::load(args.dy, row * width + begin, (row + 1) * width, dy);
      if constexpr (kSums != Sums::bias) {
        const float mean = kSums == Sums::layer_norm ? args.mean[row] : 0.0f, rstd = args.rstd[row];
        Packs::load(args.x, row * width + begin, (row + 1) * width, x);
        for (int i = 0; i < kRowElems; ++i) sums[kXhat][i] += dy[i] * ((x[i] - mean) * rstd);
      }
      if constexpr (kSums != Sums::rms_norm)
        for (int i = 0; i < kRowElems; ++i) sums[kDy][i] += dy[i];
    }
  }
  for (int s = 0; s < kCount; ++s)
    for (int i = 0; i < kRowElems; ++i) shared[s][i][threadIdx.x] = sums[s][i];  // lanes side by side
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x), lane = thread / kRowElems;
  if (first_column + thread >= width) return;
  for (int s = 0; s < kCount; ++s) {
    const float* const of_warps = shared[s][thread % kRowElems];
    float sum = of_warps[lane];
    for (int warp = 1; warp < kWarps; ++warp) sum += of_warps[warp * kWarp + lane];
    args.parts[(part * kCount + s) * width + first_column + thread] = sum;
  }
}

template <Sums kSums>
__device__ inline void sum_columns_of_any(const ColumnSumsArgs& args) {
  static_assert(kColumnsABlock == kThreads);
  __shared__ float shared[2][kRowElems][kThreads];
  const std::int64_t blocks_a_part = (args.rows.width + kColumnsABlock - 1) / kColumnsABlock;
  const std::int64_t part = blockIdx.x / blocks_a_part, first_column = blockIdx.x % blocks_a_part * kColumnsABlock;
  if (!args.is_aligned) return sum_columns<kSums, AnyPacks>(args, part, first_column, shared);
  if (args.dy.is_bf16) return sum_columns<kSums, WholePacks<Bf16>>(args, part, first_column, shared);
  sum_columns<kSums, WholePacks<float>>(args, part, first_column, shared);
}

}  // namespace

extern "C" __global__ void zs_embedding_forward(const EmbeddingArgs args) {
  const std::int64_t width = args.rows.width, packs = (width + kRowElems - 1) / kRowElems;
  const std::int64_t token = global_thread() / packs, begin = global_thread() % packs * kRowElems;
  if (token >= args.rows.count) return;
  const std::int64_t row = checked_index(args.ids[token], args.table_rows) * width,
                     position = token % args.time * width;
  float x[kRowElems], y[kRowElems];
  load_some(args.table, row + begin, row + width, args.is_aligned, x);
  if (args.positions.address != nullptr) {
    load_some(args.positions, position + begin, position + width, args.is_aligned, y);
    for (int i = 0; i < kRowElems; ++i) x[i] += y[i];
  }
  store_some(args.out, token * width + begin, (token + 1) * width, args.is_aligned, x);
}

/// One warp for 256 columns of a token. Those of an id's first token add up the rows of all; the others have nothing to
/// do.
extern "C" __global__ void zs_embedding_backward(const ScatterArgs args) {
  const std::int64_t parts = (args.rows.width + kWarpElems - 1) / kWarpElems;
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp_of_block(), token = warp / parts,
                     begin = warp % parts * kWarpElems + lane_of_warp() * kRowElems;
  if (token >= args.rows.count) return;
  const std::int32_t id = args.ids[token];
  checked_index(id, args.table_rows);
  if (id == args.padding) return;
  if (has_come_before(args, token, id)) return;
  if (!args.is_aligned) return add_rows_of_id<AnyPacks>(args, token, id, begin);
  if (args.dy.is_bf16) return add_rows_of_id<WholePacks<Bf16>>(args, token, id, begin);
  add_rows_of_id<WholePacks<float>>(args, token, id, begin);
}

/// One block a position; rounded as above.
extern "C" __global__ void zs_position_backward(const ScatterArgs args) {
  const std::int64_t width = args.rows.width, position = static_cast<std::int64_t>(blockIdx.x) * width;
  for_each_pack(width, [&](std::int64_t begin) {
    float sum[kRowElems];
    load_some(args.table, position + begin, position + width, args.is_aligned, sum);
#pragma unroll 4
    for (std::int64_t row = blockIdx.x; row < args.rows.count; row += args.time) {
      float dy[kRowElems];
      load_some(args.dy, row * width + begin, (row + 1) * width, args.is_aligned, dy);
      for (int i = 0; i < kRowElems; ++i) sum[i] = rounded(sum[i] + dy[i], args.table);
    }
    store_some(args.table, position + begin, position + width, args.is_aligned, sum);
  });
}

extern "C" __global__ void zs_bias_sums(const ColumnSumsArgs args) { sum_columns_of_any<Sums::bias>(args); }
extern "C" __global__ void zs_layer_norm_sums(const ColumnSumsArgs args) { sum_columns_of_any<Sums::layer_norm>(args); }
extern "C" __global__ void zs_rms_norm_sums(const ColumnSumsArgs args) { sum_columns_of_any<Sums::rms_norm>(args); }

/// A block has a column for each lane: each warp adds every eighth part, and the first adds up the warps' sums.
extern "C" __global__ void zs_reduce_columns(const PartsArgs args) {
  __shared__ float shared[kThreads];
  const std::int64_t columns = args.sums * args.width,
                     column = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane_of_warp();
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (std::int64_t part = warp_of_block(); part < args.count; part += kWarps)
      sum += args.parts[part * columns + column];
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (warp_of_block() != 0 || column >= columns) return;
  for (int warp = 1; warp < kWarps; ++warp) sum += shared[warp * kWarp + lane_of_warp()];
  const std::int64_t at = column % args.width;
  const Data out = column < args.width ? args.outs[0] : args.outs[1];
  float held[1] = {};
  if (args.beta != 0.0f) load_some(out, at, at + 1, false, held);
  if (args.beta != 1.0f) held[0] = rounded(held[0] * args.beta, out);
  const float result[1] = {held[0] + sum};
  store_some(out, at, at + 1, false, result);
}

}  // namespace zs::cuda
