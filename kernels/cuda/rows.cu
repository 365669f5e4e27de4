#include "kernels/cuda/warp_rows.h"

/// Embedding rows, and sums over rows.
namespace zs::cuda {
namespace {

/// table row := table row + dy row, where this thread's columns are. Rounded after every addition, as one row after the
/// other would be.
__device__ void add_row(const ScatterArgs& args, std::int64_t table_row, std::int64_t row) {
  const std::int64_t width = args.rows.width;
  for_each_pack(width, [&](std::int64_t begin) {
    float sum[kRowElems], more[kRowElems];
    load_some(args.table, table_row * width + begin, (table_row + 1) * width, args.is_aligned, sum);
    load_some(args.dy, row * width + begin, (row + 1) * width, args.is_aligned, more);
    for (int i = 0; i < kRowElems; ++i) sum[i] += more[i];
    store_some(args.table, table_row * width + begin, (table_row + 1) * width, args.is_aligned, sum);
  });
}

/// Bit t of `found`: whether token begin + t, of kThreads, is `id`. The whole block.
__device__ void find_tokens(const ScatterArgs& args, std::int64_t begin, std::int32_t id,
                            std::uint32_t (&found)[kThreads / kWarp]) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // whoever still reads the last ones
  if (thread < kThreads / kWarp) found[thread] = 0;
  __syncthreads();
  const std::int64_t token = begin + thread;
  if (token < args.rows.count && args.ids[token] == id) atomicOr(&found[thread / kWarp], 1u << thread % kWarp);
  __syncthreads();
}

/// Whether one of the first `tokens` of those that were looked at is found.
__device__ bool is_any(const std::uint32_t (&found)[kThreads / kWarp], std::int64_t tokens) {
  std::uint32_t any = 0;
  for (int word = 0; word < kThreads / kWarp; ++word) {
    const std::int64_t bits = tokens - word * kWarp;
    any |= bits >= kWarp ? found[word] : bits > 0 ? found[word] & ((1u << bits) - 1) : 0u;
  }
  return any != 0;
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

/// One block a token. The block of an id's first token adds up the rows of all, in their order; the others have nothing
/// to do.
extern "C" __global__ void zs_embedding_backward(const ScatterArgs args) {
  __shared__ std::uint32_t found[kThreads / kWarp];
  const std::int64_t first = blockIdx.x;
  const std::int32_t id = args.ids[first];
  checked_index(id, args.table_rows);
  for (std::int64_t begin = 0; begin < first; begin += kThreads) {
    find_tokens(args, begin, id, found);
    if (is_any(found, first - begin)) return;
  }
  for (std::int64_t begin = first / kThreads * kThreads; begin < args.rows.count; begin += kThreads) {
    find_tokens(args, begin, id, found);
    for (int word = 0; word < kThreads / kWarp; ++word)
      for (std::uint32_t bits = found[word]; bits != 0; bits &= bits - 1)
        add_row(args, id, begin + word * kWarp + __ffs(bits) - 1);
  }
}

/// One block a position.
extern "C" __global__ void zs_position_backward(const ScatterArgs args) {
  for (std::int64_t row = blockIdx.x; row < args.rows.count; row += args.time) add_row(args, blockIdx.x, row);
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
