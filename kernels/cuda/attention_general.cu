#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/warp.h"

/// Attention of any head_dim in f32 arithmetic, for f32 and for what the kernels on tensor cores do not take. A block
/// has 64 rows, and scores of 64 others at a time, 4 x 4 for each thread; results for 64 elements of head_dim: a longer
/// one is shared by several blocks, which all compute the scores.
namespace zs::cuda::general {
namespace {

constexpr int kRows = kAttentionRows, kEach = 4, kAcross = kRows / kEach, kDepth = 16;
static_assert(kAcross * kAcross == kThreads && kAttentionSlice == kRows);

/// One thread's elements: rows first_row() .., columns first_column() .. of 64 x 64.
using Square = float[kEach][kEach];
__device__ inline int first_row() { return static_cast<int>(threadIdx.x) / kAcross * kEach; }
__device__ inline int first_column() { return static_cast<int>(threadIdx.x) % kAcross * kEach; }

/// kDepth of the depth of both operands; the second dim is longer than 64 by what keeps writes in banks of their own.
struct Operands {
  float a[kDepth][kRows + kEach], b[kDepth][kRows + kEach];
};
struct Weights {
  float at[kRows][kRows + 1];
};

template <class T>
__device__ inline float element(const HeadRows& rows, std::int64_t row, std::int64_t column,
                                const AttentionArgs& args) {
  if (row >= args.time || column >= args.head_dim) return 0.0f;
  return to_float(static_cast<const T*>(rows.data)[rows.first + row * rows.stride + column]);
}

__device__ inline void clear(Square& c) {
#pragma unroll
  for (int r = 0; r < kEach; ++r)
#pragma unroll
    for (int i = 0; i < kEach; ++i) c[r][i] = 0.0f;
}

/// c += a^T b over kDepth
__device__ inline void add_depth(Square& c, const Operands& operands) {
#pragma unroll 2
  for (int k = 0; k < kDepth; ++k)
#pragma unroll
    for (int r = 0; r < kEach; ++r)
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        c[r][i] = fmaf(operands.a[k][first_row() + r], operands.b[k][first_column() + i], c[r][i]);
}

/// c := rows of `left` from `left_first` on times the transpose of rows of `right`, over the whole of head_dim. Begins
/// with a barrier: what was read from `operands` before is done with.
template <class T>
__device__ inline void product_of_rows(Square& c, const HeadRows& left, std::int64_t left_first, const HeadRows& right,
                                       std::int64_t right_first, const AttentionArgs& args, Operands& operands) {
  clear(c);
  for (std::int64_t begin = 0; begin < args.head_dim; begin += kDepth) {
    __syncthreads();
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kDepth; i += kThreads) {
      const int row = i / kDepth, k = i % kDepth;
      operands.a[k][row] = element<T>(left, left_first + row, begin + k, args);
      operands.b[k][row] = element<T>(right, right_first + row, begin + k, args);
    }
    __syncthreads();
    add_depth(c, operands);
  }
}

/// c += weights times rows of `right` from `first` on, elements `slice` .. of each. Begins with a barrier: all weights
/// are there.
template <class T>
__device__ inline void add_product(Square& c, const Weights& weights, const HeadRows& right, std::int64_t first,
                                   std::int64_t slice, const AttentionArgs& args, Operands& operands) {
  for (int begin = 0; begin < kRows; begin += kDepth) {
    __syncthreads();
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kDepth; i += kThreads) {
      operands.a[i % kDepth][i / kDepth] = weights.at[i / kDepth][begin + i % kDepth];
      operands.b[i / kRows][i % kRows] = element<T>(right, first + begin + i / kRows, slice + i % kRows, args);
    }
    __syncthreads();
    add_depth(c, operands);
  }
}

__device__ inline void store_weights(Weights& weights, const Square& c) {
#pragma unroll
  for (int r = 0; r < kEach; ++r)
#pragma unroll
    for (int i = 0; i < kEach; ++i) weights.at[first_row() + r][first_column() + i] = c[r][i];
}

template <class T>
__device__ inline void store_rows(const HeadRows& rows, std::int64_t first, std::int64_t slice,
                                  const AttentionArgs& args, const Square& c, const float (&factor)[kEach]) {
#pragma unroll
  for (int r = 0; r < kEach; ++r)
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t row = first + first_row() + r, column = slice + first_column() + i;
      if (row >= args.time || column >= args.head_dim) continue;
      static_cast<T*>(rows.data)[rows.first + row * rows.stride + column] = from_float<T>(c[r][i] * factor[r]);
    }
}

/// The largest, or the sum, over the 16 threads of a row.
__device__ inline float largest_of_row(float value) {
  for (int lanes = kAcross / 2; lanes > 0; lanes /= 2) value = fmaxf(value, shuffle_xor(value, lanes));
  return value;
}
__device__ inline float sum_of_row(float value) {
  for (int lanes = kAcross / 2; lanes > 0; lanes /= 2) value += shuffle_xor(value, lanes);
  return value;
}

/// A block's part: rows from `first` on, elements of head_dim from `slice` on. The slices of a block of rows are
/// neighbours.
struct Place {
  std::int64_t pair, first, slice;
};
__device__ inline Place place_of_block(const AttentionArgs& args) {
  const std::int64_t slices = (args.head_dim + kAttentionSlice - 1) / kAttentionSlice,
                     blocks = (args.time + kRows - 1) / kRows;
  const std::int64_t block = blockIdx.x / slices;
  return {block / blocks, block % blocks * kRows, blockIdx.x % slices * kAttentionSlice};
}

struct Softmax {
  float largest[kEach], sums[kEach];
};

__device__ inline bool is_seen(const AttentionArgs& args, std::int64_t query, std::int64_t key) {
  return key <= query && query - key < args.window;
}

/// s becomes 2^(factor (s - largest)), 0 where the key is not seen; what was gathered so far, which may be nothing, is
/// rescaled.
__device__ inline void softmax_tile(Softmax& softmax, Square& s, Square& result, std::int64_t first, std::int64_t key,
                                    const AttentionArgs& args) {
  const float factor = args.scale * kLog2E;
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    float largest = softmax.largest[r];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!is_seen(args, first + first_row() + r, key + first_column() + i)) s[r][i] = kMinusInfinity;
      largest = fmaxf(largest, s[r][i]);
    }
    largest = largest_of_row(largest);
    const float base = largest == kMinusInfinity ? 0.0f : largest;
    const float shrink = exp2_of((softmax.largest[r] - base) * factor);
    softmax.sums[r] *= shrink;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      s[r][i] = exp2_of((s[r][i] - base) * factor);
      softmax.sums[r] += s[r][i];
      result[r][i] *= shrink;
    }
    softmax.largest[r] = largest;
  }
}

template <class T>
__device__ void attention_forward(const AttentionArgs& args) {
  __shared__ Operands operands;
  __shared__ Weights weights;
  const Place place = place_of_block(args);
  const HeadRows queries = rows_of_qkv(args, args.qkv, place.pair, Part::query),
                 keys = rows_of_qkv(args, args.qkv, place.pair, Part::key);
  const HeadRows values = rows_of_qkv(args, args.qkv, place.pair, Part::value);
  Softmax softmax;
  Square s, result;
  clear(result);
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    softmax.largest[r] = kMinusInfinity;
    softmax.sums[r] = 0.0f;
  }
  for (std::int64_t key = first_key(args, place.first) / kRows * kRows; key <= place.first; key += kRows) {
    product_of_rows<T>(s, queries, place.first, keys, key, args, operands);
    softmax_tile(softmax, s, result, place.first, key, args);
    store_weights(weights, s);
    add_product<T>(result, weights, values, key, place.slice, args, operands);
  }
  float inverse[kEach];
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const float sum = sum_of_row(softmax.sums[r]);
    const std::int64_t row = place.first + first_row() + r;
    inverse[r] = 1.0f / sum;
    if (place.slice == 0 && first_column() == 0 && row < args.time)
      args.lse[place.pair * args.time + row] = softmax.largest[r] * args.scale + logf(sum);
  }
  store_rows<T>(rows_of_out(args, args.out, place.pair), place.first, place.slice, args, result, inverse);
}

/// delta := sum of dout * out of each row (batch, heads, time); 8 lanes a row.
template <class P>
__device__ void attention_delta(const AttentionArgs& args) {
  const std::int64_t index = global_thread() / kDeltaLanes, rows = args.batch * args.heads * args.time;
  const std::int64_t row = index < rows ? index : rows - 1;  // all lanes meet
  const int lane = static_cast<int>(threadIdx.x) % kDeltaLanes;
  const HeadRows out = rows_of_out(args, args.out, row / args.time);
  const std::int64_t begin = out.first + row % args.time * out.stride, end = begin + args.head_dim;
  float sum = 0.0f;
  for (std::int64_t at = begin + lane * kRowElems; at < end; at += kDeltaLanes * kRowElems) {
    float x[kRowElems], dx[kRowElems];
    P::load(args.out, at, end, x);
    P::load(args.dout, at, end, dx);
    for (int i = 0; i < kRowElems; ++i) sum = fmaf(x[i], dx[i], sum);
  }
  for (int lanes = kDeltaLanes / 2; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
  if (lane == 0 && index < rows) args.delta[row] = sum;
}

/// Probability of a score before it is scaled. The scaled one is rounded first, as it was for lse: where it is all of
/// lse, the probability is 1.
__device__ inline float probability(float score, float scale, float lse) {
  return exp2_of((fmaf(score, scale, 0.0f) - lse) * kLog2E);
}

/// See attention_backward.cu.
__device__ inline float score_gradient(float p, float dp, float delta) { return p >= 1.0f ? 0.0f : p * (dp - delta); }

/// Gradient of queries, dq. See attention_backward.cu.
template <class T>
__device__ void attention_dqueries(const AttentionArgs& args) {
  __shared__ Operands operands;
  __shared__ Weights weights;
  const Place place = place_of_block(args);
  const HeadRows queries = rows_of_qkv(args, args.qkv, place.pair, Part::query),
                 keys = rows_of_qkv(args, args.qkv, place.pair, Part::key);
  const HeadRows values = rows_of_qkv(args, args.qkv, place.pair, Part::value),
                 dout = rows_of_out(args, args.dout, place.pair);
  float lse[kEach], delta[kEach];
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const std::int64_t row = place.first + first_row() + r;
    lse[r] = row < args.time ? args.lse[place.pair * args.time + row] : 0.0f;
    delta[r] = row < args.time ? args.delta[place.pair * args.time + row] : 0.0f;
  }
  Square s, ds, dq;
  clear(dq);
  for (std::int64_t key = first_key(args, place.first) / kRows * kRows; key <= place.first; key += kRows) {
    product_of_rows<T>(s, queries, place.first, keys, key, args, operands);
    product_of_rows<T>(ds, dout, place.first, values, key, args, operands);
#pragma unroll
    for (int r = 0; r < kEach; ++r)
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        s[r][i] = is_seen(args, place.first + first_row() + r, key + first_column() + i)
                      ? probability(s[r][i], args.scale, lse[r])
                      : 0.0f;
        ds[r][i] = score_gradient(s[r][i], ds[r][i], delta[r]);
      }
    store_weights(weights, ds);
    add_product<T>(dq, weights, keys, key, place.slice, args, operands);
  }
  const float factor[kEach] = {args.scale, args.scale, args.scale, args.scale};
  store_rows<T>(rows_of_qkv(args, args.dqkv, place.pair, Part::query), place.first, place.slice, args, dq, factor);
}

/// Gradients of keys and values, dk and dv, over the query heads that share them, one after the other.
template <class T>
__device__ void attention_dkeys(const AttentionArgs& args) {
  __shared__ Operands operands;
  __shared__ Weights weights;
  const Place place = place_of_block(args);  // its pair counts heads of keys
  const std::int64_t group = args.heads / args.kv_heads, first_pair = place.pair * group,
                     end = end_of_queries(args, place.first + kRows);
  const HeadRows keys = rows_of_qkv(args, args.qkv, first_pair, Part::key),
                 values = rows_of_qkv(args, args.qkv, first_pair, Part::value);
  Square s, ds, dk, dv;
  clear(dk);
  clear(dv);
  for (std::int64_t pair = first_pair; pair < first_pair + group; ++pair) {
    const HeadRows queries = rows_of_qkv(args, args.qkv, pair, Part::query), dout = rows_of_out(args, args.dout, pair);
    for (std::int64_t query = place.first; query < end; query += kRows) {
      product_of_rows<T>(s, keys, place.first, queries, query, args, operands);
      product_of_rows<T>(ds, values, place.first, dout, query, args, operands);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const std::int64_t column = query + first_column() + i, row = pair * args.time + column;
        const float lse = column < args.time ? args.lse[row] : 0.0f,
                    delta = column < args.time ? args.delta[row] : 0.0f;
#pragma unroll
        for (int r = 0; r < kEach; ++r) {
          s[r][i] = is_seen(args, column, place.first + first_row() + r) ? probability(s[r][i], args.scale, lse) : 0.0f;
          ds[r][i] = score_gradient(s[r][i], ds[r][i], delta);
        }
      }
      store_weights(weights, s);
      add_product<T>(dv, weights, dout, query, place.slice, args, operands);
      store_weights(weights, ds);
      add_product<T>(dk, weights, queries, query, place.slice, args, operands);
    }
  }
  const float one[kEach] = {1.0f, 1.0f, 1.0f, 1.0f}, scale[kEach] = {args.scale, args.scale, args.scale, args.scale};
  store_rows<T>(rows_of_qkv(args, args.dqkv, first_pair, Part::key), place.first, place.slice, args, dk, scale);
  store_rows<T>(rows_of_qkv(args, args.dqkv, first_pair, Part::value), place.first, place.slice, args, dv, one);
}

}  // namespace

ZS_KERNEL(zs_attention_forward, AttentionArgs, attention_forward<T>(args))
ZS_KERNEL(zs_attention_delta, AttentionArgs, ZS_BY_PACKS(attention_delta<P>(args)))
ZS_KERNEL(zs_attention_dqueries, AttentionArgs, attention_dqueries<T>(args))
ZS_KERNEL(zs_attention_dkeys, AttentionArgs, attention_dkeys<T>(args))

}  // namespace zs::cuda::general
