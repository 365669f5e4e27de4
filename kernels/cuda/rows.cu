#include "kernels/cuda/warp_rows.h"

/// Embedding rows, and sums over rows.
namespace zs::cuda {
namespace {

constexpr int kDigits = 1 << kIdBitsAPass, kRowsAtOnce = 4;

/// counts (kDigits, kThreads) := for each digit and thread the sum of all counts of smaller digits, and of that digit
/// by threads before this one.
__device__ void sum_before(int (&counts)[kDigits * kThreads], int (&sums)[kThreads]) {
  const int thread = static_cast<int>(threadIdx.x);
  int* const own = counts + thread * kDigits;
  int sum = 0;
  for (int i = 0; i < kDigits; ++i) sum += own[i];
  sums[thread] = sum;
  __syncthreads();
  int before = 0;
  for (int step = 1; step < kThreads; step *= 2) {
    const int more = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    before += more;
    sums[thread] = sum + before;
    __syncthreads();
  }
  for (int i = 0; i < kDigits; ++i) {
    const int count = own[i];
    own[i] = before;
    before += count;
  }
  __syncthreads();
}

/// A pass by the digit at `shift`: visit(token, digit) for this thread's part of `from` (null: the tokens in order).
/// Some are asked for together.
template <class Visit>
__device__ void for_each_digit(const SortIdsArgs& args, const std::int32_t* from, int shift, const Visit& visit) {
  constexpr int kAtOnce = 8;
  const std::int64_t each = (args.count + kThreads - 1) / kThreads, first = threadIdx.x * each;
  const std::int64_t last = first + each < args.count ? first + each : args.count;
  for (std::int64_t begin = first; begin < last; begin += kAtOnce) {
    std::int32_t tokens[kAtOnce] = {}, ids[kAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (begin + k < last) tokens[k] = from != nullptr ? from[begin + k] : static_cast<std::int32_t>(begin + k);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (begin + k < last) ids[k] = args.ids[tokens[k]];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (begin + k < last)
        visit(tokens[k], static_cast<int>(checked_index(ids[k], args.table_rows) >> shift) % kDigits);
  }
}

/// (warp) Adds the rows of all tokens from `place` of the order on that are `id` to a pack of columns for each lane;
/// rounded after every addition, as one row after the other would be. Some rows are asked for together.
template <class P, class Table>
__device__ void add_rows_of_id(const ScatterArgs& args, std::int64_t place, std::int32_t id, std::int64_t begin) {
  const std::int64_t width = args.rows.width, row_of_table = id * width;
  const bool has_columns = begin < width;
  float sum[kRowElems] = {};
  if (has_columns) P::template load<Table>(args.table, row_of_table + begin, row_of_table + width, sum);
  for (int count = kWarp; count == kWarp; place += kWarp) {
    const std::int64_t other = place + lane_of_warp();
    const std::uint64_t same = vote(other < args.rows.count && args.ids[args.order[other]] == id);
    count = __ffsll(static_cast<long long>(~same)) - 1;  // before the first that is not
    if (!has_columns) continue;
    for_each_some<kRowsAtOnce>(0, count, 1, [&](std::int64_t at, auto n) {
      float rows[n][kRowElems];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const std::int64_t row = args.order[place + at + k];
        P::load(args.dy, row * width + begin, (row + 1) * width, rows[k]);
      }
#pragma unroll
      for (int k = 0; k < n; ++k)
        for (int i = 0; i < kRowElems; ++i) sum[i] = rounded<Table>(sum[i] + rows[k][i]);
    });
  }
  if (has_columns) P::template store<Table>(args.table, row_of_table + begin, row_of_table + width, sum);
}

enum class Sums { bias, layer_norm, rms_norm };

/// Sums of a block's threads, in shared memory.
template <int kCount>
__device__ inline auto shared_sums() -> float (&)[kCount][kRowElems][kThreads] {
  __shared__ float sums[kCount][kRowElems][kThreads];
  return sums;
}

/// Sums of one part's rows, of a pack of columns for each lane: see ColumnSumsArgs. Those of the block's warps are
/// added in order.
template <Sums kSums, class P>
__device__ void sum_columns(const ColumnSumsArgs& args) {
  static_assert(kColumnsABlock == kThreads);
  constexpr int kCount = kSums == Sums::layer_norm ? 2 : 1;
  auto& shared = shared_sums<kCount>();
  const std::int64_t blocks_a_part = (args.rows.width + kColumnsABlock - 1) / kColumnsABlock;
  const std::int64_t part = blockIdx.x / blocks_a_part, first_column = blockIdx.x % blocks_a_part * kColumnsABlock;
  const std::int64_t width = args.rows.width, begin = first_column + lane_of_warp() * kRowElems;
  float sums[kCount][kRowElems] = {};
  const std::int64_t first = part * kWarps + warp_of_block(), step = args.count * kWarps;
  if (begin < width)
    for_each_some<kRowsAtOnce>(first, args.rows.count, step, [&](std::int64_t row, auto n) {
      float dy[n][kRowElems];
      [[maybe_unused]] float x[n][kRowElems], mean[n], rstd[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const std::int64_t at = row + k * step;
        P::load(args.dy, at * width + begin, (at + 1) * width, dy[k]);
        if constexpr (kSums != Sums::bias) {
          P::load(args.x, at * width + begin, (at + 1) * width, x[k]);
          mean[k] = kSums == Sums::layer_norm ? args.mean[at] : 0.0f;
          rstd[k] = args.rstd[at];
        }
      }
#pragma unroll
      for (int k = 0; k < n; ++k)
        for (int i = 0; i < kRowElems; ++i) {
          if constexpr (kSums != Sums::bias) sums[0][i] += dy[k][i] * ((x[k][i] - mean[k]) * rstd[k]);
          if constexpr (kSums != Sums::rms_norm) sums[kCount - 1][i] += dy[k][i];
        }
    });
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

template <class P>
__device__ void embedding_forward(const EmbeddingArgs& args) {
  const std::int64_t width = args.rows.width, packs = (width + kRowElems - 1) / kRowElems;
  const std::int64_t token = global_thread() / packs, begin = global_thread() % packs * kRowElems;
  if (token >= args.rows.count) return;
  const std::int64_t row = checked_index(args.ids[token], args.table_rows) * width,
                     position = token % args.time * width;
  float x[kRowElems], y[kRowElems];
  P::load(args.table, row + begin, row + width, x);
  if (args.positions != nullptr) {
    P::load(args.positions, position + begin, position + width, y);
    for (int i = 0; i < kRowElems; ++i) x[i] += y[i];
  }
  P::store(args.out, token * width + begin, (token + 1) * width, x);
}

/// One warp for 256 columns of a place in the order. Those of an id's first place add up the rows of all; the others
/// have nothing to do.
template <class P, class Table>
__device__ void embedding_backward(const ScatterArgs& args) {
  const std::int64_t parts = (args.rows.width + kWarpElems - 1) / kWarpElems;
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp_of_block(), place = warp / parts,
                     begin = warp % parts * kWarpElems + lane_of_warp() * kRowElems;
  if (place >= args.rows.count) return;
  const std::int32_t id = args.ids[args.order[place]];
  if (id == args.padding) return;
  if (place > 0 && args.ids[args.order[place - 1]] == id) return;
  add_rows_of_id<P, Table>(args, place, id, begin);
}

/// One block a position; rounded as above.
template <class P, class Table>
__device__ void position_backward(const ScatterArgs& args) {
  const std::int64_t width = args.rows.width, position = static_cast<std::int64_t>(blockIdx.x) * width;
  for_each_pack(width, [&](std::int64_t begin) {
    float sum[kRowElems];
    P::template load<Table>(args.table, position + begin, position + width, sum);
    for_each_some<kRowsAtOnce>(blockIdx.x, args.rows.count, args.time, [&](std::int64_t row, auto n) {
      float dy[n][kRowElems];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const std::int64_t at = row + k * args.time;
        P::load(args.dy, at * width + begin, (at + 1) * width, dy[k]);
      }
#pragma unroll
      for (int k = 0; k < n; ++k)
        for (int i = 0; i < kRowElems; ++i) sum[i] = rounded<Table>(sum[i] + dy[k][i]);
    });
    P::template store<Table>(args.table, position + begin, position + width, sum);
  });
}

template <class T>
__device__ void add_sum(void* outs, std::int64_t column, float sum, float beta) {
  T& out = static_cast<T*>(outs)[column];
  float held = beta != 0.0f ? to_float(out) : 0.0f;
  if (beta != 1.0f) held = rounded<T>(held * beta);
  out = from_float<T>(held + sum);
}

/// A block has a column for each lane: each warp adds every eighth part, and the first adds up the warps' sums. T and U
/// of the first and second out.
template <class T, class U>
__device__ void reduce_columns(const PartsArgs& args) {
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
  if (column < args.width)
    add_sum<T>(args.outs[0], column, sum, args.beta);
  else
    add_sum<U>(args.outs[1], column - args.width, sum, args.beta);
}

}  // namespace

/// One block: a radix sort, from the lowest digit on. Counts are added up in order, so that it needs no atomics and
/// keeps the order of equal ids.
extern "C" __global__ void zs_sort_ids(const SortIdsArgs args) {
  __shared__ int places[kDigits * kThreads], sums[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int32_t* from = nullptr;
  for (int pass = 0; pass < args.passes; ++pass) {
    std::int32_t* const to = (args.passes - pass) % 2 == 1 ? args.order : args.other;
    for (int digit = 0; digit < kDigits; ++digit) places[digit * kThreads + thread] = 0;
    for_each_digit(args, from, pass * kIdBitsAPass,
                   [&](std::int32_t, int digit) { ++places[digit * kThreads + thread]; });
    __syncthreads();
    sum_before(places, sums);
    for_each_digit(args, from, pass * kIdBitsAPass,
                   [&](std::int32_t token, int digit) { to[places[digit * kThreads + thread]++] = token; });
    __syncthreads();
    from = to;
  }
}

ZS_KERNEL(zs_embedding_forward, EmbeddingArgs, ZS_BY_PACKS(embedding_forward<P>(args)))
/// Dtypes of dy and of the table.
ZS_PAIR_KERNEL(zs_embedding_backward, ScatterArgs, ZS_BY_PACKS(embedding_backward<P, U>(args)))
ZS_PAIR_KERNEL(zs_position_backward, ScatterArgs, ZS_BY_PACKS(position_backward<P, U>(args)))
ZS_KERNEL(zs_bias_sums, ColumnSumsArgs, ZS_BY_PACKS(sum_columns<Sums::bias, P>(args)))
ZS_KERNEL(zs_layer_norm_sums, ColumnSumsArgs, ZS_BY_PACKS(sum_columns<Sums::layer_norm, P>(args)))
ZS_KERNEL(zs_rms_norm_sums, ColumnSumsArgs, ZS_BY_PACKS(sum_columns<Sums::rms_norm, P>(args)))
ZS_PAIR_KERNEL(zs_reduce_columns, PartsArgs, reduce_columns<T, U>(args))

}  // namespace zs::cuda
