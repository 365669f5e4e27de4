#pragma once

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vec_math.h"

/// Products of small row-major tiles, held in vector registers.
namespace zs::cpu::ZS_ISA {

#if defined(__AVX512F__)
constexpr int kTileVectors = 4;
#else
constexpr int kTileVectors = 2;
#endif
constexpr std::int64_t kTile = kAttentionTile;

/// The left operand: element (row, k) at address[row * row_stride + k * k_stride], so that a transpose costs nothing.
struct LeftTile {
  const float* address;
  std::int64_t row_stride, k_stride;
};
/// A row-major tile whose rows start `stride` floats apart.
struct RightTile {
  const float* address;
  std::int64_t stride;
};
struct ResultTile {
  float* address;
  std::int64_t stride;
};

template <bool kAdd, int kRows, int kVectors>
inline void product_block(ResultTile c, LeftTile a, RightTile b, std::int64_t depth) {
  Vec sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = kAdd ? load_vec(c.address + r * c.stride + v * kVectorFloats) : Vec{};
  for (std::int64_t k = 0; k < depth; ++k) {
    Vec right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = load_vec(b.address + k * b.stride + v * kVectorFloats);
    for (int r = 0; r < kRows; ++r) {
      const Vec left = a.address[r * a.row_stride + k * a.k_stride] - Vec{};
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fused(left, right[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store_vec(c.address + r * c.stride + v * kVectorFloats, sums[r][v]);
}

template <bool kAdd, int kRows, int kVectors>
inline void product_column(ResultTile c, LeftTile a, RightTile b, std::int64_t rows, std::int64_t depth) {
  for (std::int64_t r = 0; r < rows; r += kRows)
    product_block<kAdd, kRows, kVectors>({c.address + r * c.stride, c.stride},
                                         {a.address + r * a.row_stride, a.row_stride, a.k_stride}, b, depth);
}

/// c (rows, columns) := [c +] a (rows, depth) * b (depth, columns); rows a multiple of 8, columns of 16.
template <bool kAdd>
inline void tile_product(ResultTile c, LeftTile a, RightTile b, std::int64_t rows, std::int64_t columns,
                         std::int64_t depth) {
  constexpr std::int64_t kWide = kTileVectors * kVectorFloats;
  std::int64_t first = 0;
  for (; first + kWide <= columns; first += kWide)
    product_column<kAdd, 4, kTileVectors>({c.address + first, c.stride}, a, {b.address + first, b.stride}, rows, depth);
  const ResultTile rest{c.address + first, c.stride};
  const RightTile right{b.address + first, b.stride};
  switch ((columns - first) / kVectorFloats) {
    case 1: product_column<kAdd, 8, 1>(rest, a, right, rows, depth); break;
    case 2: product_column<kAdd, 8, 2>(rest, a, right, rows, depth); break;
    case 3: product_column<kAdd, 4, 3>(rest, a, right, rows, depth); break;
    default: break;
  }
}

/// rows (time, head_dim) of one head, token_stride elements apart, to f32 (padded_time, width) times factor, padded
/// with zeros.
template <class T>
inline void load_rows(float* out, std::int64_t width, const T* in, std::int64_t token_stride, std::int64_t padded_time,
                      const AttentionDims& dims, float factor) {
  for (std::int64_t t = 0; t < padded_time; ++t) {
    float* row = out + t * width;
    const std::int64_t count = t < dims.time ? dims.head_dim : 0;
    const T* source = in + t * token_stride;
#pragma omp simd
    for (std::int64_t d = 0; d < count; ++d) row[d] = to_float(source[d]) * factor;
    for (std::int64_t d = count; d < width; ++d) row[d] = 0.0f;
  }
}

/// (padded_time, width) to tiles (padded_time / kTile, head_dim, kTile): each tile is the transpose of kTile rows.
inline void transpose_tiles(float* out, const float* in, std::int64_t width, std::int64_t padded_time,
                            std::int64_t head_dim) {
  for (std::int64_t first = 0; first < padded_time; first += kTile)
    for (std::int64_t d = 0; d < head_dim; ++d)
      for (std::int64_t t = 0; t < kTile; ++t) out[first * head_dim + d * kTile + t] = in[(first + t) * width + d];
}

/// Place of the first rows of a head in tensors (batch, time, heads + 2 kv_heads, head_dim) and (batch, time, heads,
/// head_dim), and how many elements apart its rows are. pair = batch * heads + head.
struct HeadPlace {
  std::int64_t query, key, value, stride;  // in qkv
  std::int64_t out, out_stride;
};
inline HeadPlace head_place(const AttentionDims& dims, std::int64_t pair) {
  const std::int64_t kv_heads = kv_heads_of(dims), head = pair % dims.heads,
                     key_head = dims.heads + head / (dims.heads / kv_heads);
  const std::int64_t token = pair / dims.heads * dims.time, stride = qkv_width_of(dims), first = token * stride;
  return {first + head * dims.head_dim,
          first + key_head * dims.head_dim,
          first + (key_head + kv_heads) * dims.head_dim,
          stride,
          (token * dims.heads + head) * dims.head_dim,
          dims.heads * dims.head_dim};
}

/// The first key that query `query` sees.
inline std::int64_t first_key(const AttentionDims& dims, std::int64_t query) {
  return max_of(0, query + 1 - window_of(dims));
}
/// End of the queries that see a key before `end`, up to a multiple of `unit`.
inline std::int64_t end_of_queries(const AttentionDims& dims, std::int64_t end, std::int64_t padded_time,
                                   std::int64_t unit) {
  return min_of(padded_time, round_up(end - 1 + window_of(dims), unit));
}

/// The query heads that share the keys and values of one head: pairs first .. first + count - 1.
struct HeadGroup {
  std::int64_t first, count;
};

/// rows (rows, width) times factor to head_dim elements each, token_stride apart.
template <class T>
inline void store_rows(T* out, std::int64_t token_stride, const float* in, std::int64_t width, std::int64_t rows,
                       const AttentionDims& dims, float factor) {
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (std::int64_t d = 0; d < dims.head_dim; ++d)
      out[r * token_stride + d] = from_float<T>(in[r * width + d] * factor);
  }
}

/// Hands out one thread's scratch.
struct Scratch {
  float* next;
  float* take(std::int64_t elems) {
    float* const block = next;
    next += round_up(elems, 16);
    return block;
  }
  /// Takes so many floats for elements of another type.
  template <class T>
  T* take_as(std::int64_t floats) {
    return reinterpret_cast<T*>(take(floats));
  }
};

/// f(pair, scratch) for every (batch, head), pair = batch * heads + head, given out as threads become free.
template <class F>
inline void for_each_head(int threads, const Attention& args, F f) {
  const std::int64_t pairs = args.dims.batch * args.dims.heads;
  const int team = static_cast<int>(max_of(1, min_of(threads, pairs)));
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (team > 1)
  for (std::int64_t pair = 0; pair < pairs; ++pair)
    f(pair, Scratch{args.scratch + omp_get_thread_num() * args.scratch_elems});
}

/// f(group, scratch) for every (batch, key and value head), in the same way.
template <class F>
inline void for_each_group(int threads, const Attention& args, F f) {
  const AttentionDims& dims = args.dims;
  const std::int64_t kv_heads = kv_heads_of(dims), count = dims.heads / kv_heads;
  Attention groups = args;
  groups.dims.heads = kv_heads;
  for_each_head(threads, groups, [=](std::int64_t group, Scratch scratch) {
    f(HeadGroup{group * count, count}, scratch);
  });
}

/// Factor of what a row has gathered, and the row's log-sum-exp.
struct RowEnd {
  float factor, lse;
};
inline float sink_of(const Data& sinks, std::int64_t head) {
  return sinks.is_bf16 ? to_float(elements<const Bf16>(sinks)[head]) : elements<const float>(sinks)[head];
}
/// End of a row of `head` whose exponentials of scores less the largest add up to `sum`.
inline RowEnd end_of_row(float sum, float largest, const Data& sinks, std::int64_t head) {
  if (sinks.address == nullptr) return {1.0f / sum, largest + __builtin_logf(sum)};
  const float sink = sink_of(sinks, head), most = sink > largest ? sink : largest, shrink = exp_of(largest - most),
              all = sum * shrink + exp_of(sink - most);
  return {shrink / all, most + __builtin_logf(all)};
}

/// The loops of the other files of attention.
void attention_backward(int threads, const Attention& args);
void attention_dsinks(int threads, float* sums, const Attention& args);
#if defined(__AMX_BF16__)
/// bf16 only.
void attention_forward_amx(int threads, const Attention& args);
void attention_backward_amx(int threads, const Attention& args);
#endif

}  // namespace zs::cpu::ZS_ISA
