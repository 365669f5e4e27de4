#include "kernels/cuda/device.h"

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

/// Sums of a pack of columns over the rows of one part: see ColumnSumsArgs.
template <Sums kSums>
__device__ void sum_columns(const ColumnSumsArgs& args, std::int64_t part, std::int64_t begin) {
  const std::int64_t width = args.rows.width, first = part * args.rows_a_part;
  const std::int64_t last = first + args.rows_a_part < args.rows.count ? first + args.rows_a_part : args.rows.count;
  float sums[kRowElems] = {}, weighted[kRowElems] = {};
  for (std::int64_t row = first; row < last; ++row) {
    float dy[kRowElems], x[kRowElems];
    load_some(args.dy, row * width + begin, (row + 1) * width, args.is_aligned, dy);
    for (int i = 0; i < kRowElems; ++i) sums[i] += dy[i];
    if constexpr (kSums != Sums::bias) {
      const float mean = kSums == Sums::layer_norm ? args.mean[row] : 0.0f, rstd = args.rstd[row];
      load_some(args.x, row * width + begin, (row + 1) * width, args.is_aligned, x);
      for (int i = 0; i < kRowElems; ++i) weighted[i] += dy[i] * ((x[i] - mean) * rstd);
    }
  }
  float* parts = args.parts + part * width * (kSums == Sums::layer_norm ? 2 : 1);
  if constexpr (kSums != Sums::bias) {
    store_some({parts, false}, begin, width, args.is_aligned, weighted);
    parts += width;
  }
  if constexpr (kSums != Sums::rms_norm) store_some({parts, false}, begin, width, args.is_aligned, sums);
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

extern "C" __global__ void zs_column_sums(const ColumnSumsArgs args) {
  const std::int64_t packs = (args.rows.width + kRowElems - 1) / kRowElems;
  const std::int64_t part = global_thread() / packs, begin = global_thread() % packs * kRowElems;
  if (part * args.rows_a_part >= args.rows.count) return;
  if (args.x.address == nullptr)
    sum_columns<Sums::bias>(args, part, begin);
  else if (args.mean != nullptr)
    sum_columns<Sums::layer_norm>(args, part, begin);
  else
    sum_columns<Sums::rms_norm>(args, part, begin);
}

extern "C" __global__ void zs_reduce_columns(const PartsArgs args) {
  const std::int64_t column = global_thread();
  if (column >= args.width) return;
  float sum = 0;
  for (std::int64_t part = 0; part < args.count; ++part) sum += args.parts[part * args.stride + column];
  float held[1] = {};
  if (args.beta != 0.0f) load_some(args.out, column, column + 1, false, held);
  if (args.beta != 1.0f) held[0] = rounded(held[0] * args.beta, args.out);
  const float result[1] = {held[0] + sum};
  store_some(args.out, column, column + 1, false, result);
}

}  // namespace zs::cuda
