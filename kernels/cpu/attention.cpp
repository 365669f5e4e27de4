#if defined(ZS_ISA)
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/vec_math.h"

namespace zs::cpu::ZS_ISA {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

struct ForwardScratch {
  float *keys_t, *values,
      *queries;                // tiles (head_dim, kTile); (padded_time, width); (padded_time, width) times the scale
  float *scores, *result;      // (kTile, kTile), (kTile, width)
  float *largest, *lane_sums;  // (kTile), (kTile, kLanes)
};

/// Turns one tile's scores into exp(score - running maximum) and rescales what the rows have gathered so far.
void softmax_tile(const ForwardScratch& s, std::int64_t width) {
  for (std::int64_t r = 0; r < kTile; ++r) {
    float* row = s.scores + r * kTile;
    Lanes lanes;
    for (Vec& v : lanes.v) v += s.largest[r];
    for (std::int64_t c = 0; c < kTile; c += kLanes) lanes.max(row + c);
    const float before = s.largest[r], now = reduce_max(lanes);
    if (now == kMinusInfinity) {  // none of these keys is in its window
      for (std::int64_t c = 0; c < kTile; ++c) row[c] = 0.0f;
      continue;
    }
    float *sums = s.lane_sums + r * kLanes, *result = s.result + r * width;
#pragma omp simd
    for (std::int64_t c = 0; c < kTile; ++c) row[c] = exp_of(row[c] - now);
    if (now > before) {
      const float shrink = exp_of(before - now);
      s.largest[r] = now;
#pragma omp simd
      for (std::int64_t d = 0; d < width; ++d) result[d] *= shrink;
#pragma omp simd
      for (int i = 0; i < kLanes; ++i) sums[i] *= shrink;
    }
    Lanes total;
    total.add(sums);
    for (std::int64_t c = 0; c < kTile; c += kLanes) total.add(row + c);
    total.store(sums);
  }
}

/// Scores of queries from `first` on and keys from `keys` on: minus infinity where the key is not seen.
void mask(float* scores, const AttentionDims& dims, std::int64_t first, std::int64_t keys) {
  for (std::int64_t r = 0; r < kTile; ++r) {
    const std::int64_t query = first + r;
    for (std::int64_t c = 0; c < min_of(kTile, first_key(dims, query) - keys); ++c)
      scores[r * kTile + c] = kMinusInfinity;
    for (std::int64_t c = max_of(0, query + 1 - keys); c < kTile; ++c) scores[r * kTile + c] = kMinusInfinity;
  }
}

float sum_row(const float* lane_sums) {
  Lanes lanes;
  lanes.add(lane_sums);
  return reduce_sum(lanes);
}

template <class T>
void forward_queries(const Attention& args, const ForwardScratch& s, std::int64_t pair, std::int64_t first) {
  const AttentionDims& dims = args.dims;
  const std::int64_t width = round_up(dims.head_dim, 16);
  const HeadPlace place = head_place(dims, pair);
  for (std::int64_t i = 0; i < kTile * width; ++i) s.result[i] = 0.0f;
  for (std::int64_t i = 0; i < kTile * kLanes; ++i) s.lane_sums[i] = 0.0f;
  for (std::int64_t r = 0; r < kTile; ++r) s.largest[r] = kMinusInfinity;
  const std::int64_t all_seen = first_key(dims, first + kTile - 1);  // from there on, up to the diagonal
  for (std::int64_t keys = first_key(dims, first) / kTile * kTile; keys <= first; keys += kTile) {
    tile_product<false>({s.scores, kTile}, {s.queries + first * width, width, 1},
                        {s.keys_t + keys * dims.head_dim, kTile}, kTile, kTile, dims.head_dim);
    if (keys == first || keys < all_seen) mask(s.scores, dims, first, keys);
    softmax_tile(s, width);
    tile_product<true>({s.result, width}, {s.scores, kTile, 1}, {s.values + keys * width, width}, kTile, width, kTile);
  }
  const std::int64_t rows = min_of(kTile, dims.time - first);
  for (std::int64_t r = 0; r < rows; ++r) {
    const RowEnd end = end_of_row(sum_row(s.lane_sums + r * kLanes), s.largest[r], args.sinks, pair % dims.heads);
    T* out = elements<T>(args.out) + place.out + (first + r) * place.out_stride;
    for (std::int64_t d = 0; d < dims.head_dim; ++d) out[d] = from_float<T>(s.result[r * width + d] * end.factor);
    args.lse[pair * dims.time + first + r] = end.lse;
  }
}

template <class T>
void forward_head(const Attention& args, std::int64_t pair, Scratch scratch) {
  const AttentionDims& dims = args.dims;
  const std::int64_t width = round_up(dims.head_dim, 16), time = round_up(dims.time, kTile);
  const HeadPlace place = head_place(dims, pair);
  const T* const qkv = elements<const T>(args.qkv);
  ForwardScratch s;
  s.keys_t = scratch.take(time * width);
  s.values = scratch.take(time * width);
  s.queries = scratch.take(time * width);
  s.scores = scratch.take(kTile * kTile);
  s.result = scratch.take(kTile * width);
  s.largest = scratch.take(kTile);
  s.lane_sums = scratch.take(kTile * kLanes);
  load_rows(s.values, width, qkv + place.key, place.stride, time, dims, 1.0f);
  transpose_tiles(s.keys_t, s.values, width, time, dims.head_dim);
  load_rows(s.values, width, qkv + place.value, place.stride, time, dims, 1.0f);
  load_rows(s.queries, width, qkv + place.query, place.stride, time, dims,
            1.0f / __builtin_sqrtf(static_cast<float>(dims.head_dim)));
  for (std::int64_t first = 0; first < time; first += kTile) forward_queries<T>(args, s, pair, first);
}

void attention_forward(int threads, const Attention& args) {
#if defined(__AMX_BF16__)
  if (args.qkv.is_bf16) return attention_forward_amx(threads, args);
#endif
  with_type(args.qkv, [&](auto tag) {
    using T = decltype(tag);
    for_each_head(threads, args, [&](std::int64_t pair, Scratch scratch) { forward_head<T>(args, pair, scratch); });
  });
}

}  // namespace

void fill_attention(Isa& isa) {
  isa.attention_forward = attention_forward;
  isa.attention_backward = attention_backward;
  isa.attention_dsinks = attention_dsinks;
}

}  // namespace zs::cpu::ZS_ISA
#else
#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

std::int64_t attention_scratch(int threads, const AttentionDims& dims) {
  return kFloat * std::min<std::int64_t>(threads, dims.batch * dims.heads) *
         round_up(attention_scratch_elems(dims), 16);
}

Attention attention_args(ExecContext& ctx, const Buffer& out, const Buffer& lse, const Buffer& qkv,
                         const AttentionDims& dims) {
  checks::attention(out, lse, qkv, dims);
  return {.out = data_of(out),
          .qkv = data_of(qkv),
          .dout = {},
          .dqkv = {},
          .lse = floats_of(lse),
          .dims = dims,
          .scratch = scratch(ctx, attention_scratch(ctx.threads(), dims)),
          .scratch_elems = round_up(attention_scratch_elems(dims), 16)};
}

void attention_forward(ExecContext& ctx, Buffer out, Buffer lse, Buffer qkv, const AttentionDims& dims) {
  isa().attention_forward(ctx.threads(), attention_args(ctx, out, lse, qkv, dims));
}

void attention_backward(ExecContext& ctx, Buffer dqkv, Buffer dout, Buffer out, Buffer qkv, Buffer lse,
                        const AttentionDims& dims) {
  Attention args = attention_args(ctx, out, lse, qkv, dims);
  checks::same_as("dqkv", dqkv, qkv);
  checks::same_as("dout", dout, out);
  args.dqkv = data_of(dqkv);
  args.dout = data_of(dout);
  isa().attention_backward(ctx.threads(), args);
}

void check_sinks(const Buffer& sinks, const AttentionDims& dims) {
  ZS_CHECK(sinks.elems == dims.heads, "{} sinks for {} heads", sinks.elems, dims.heads);
}

void forward_with_sinks(ExecContext& ctx, Buffer out, Buffer lse, Buffer qkv, Buffer sinks, const AttentionDims& dims) {
  check_sinks(sinks, dims);
  Attention args = attention_args(ctx, out, lse, qkv, dims);
  args.sinks = data_of(sinks);
  isa().attention_forward(ctx.threads(), args);
}

void sinks_backward(ExecContext& ctx, Buffer dsinks, Buffer dout, Buffer out, Buffer lse, Buffer sinks,
                    const AttentionDims& dims, float beta) {
  check_sinks(sinks, dims);
  checks::same_as("dout", dout, out);
  ZS_CHECK(out.elems == lse.elems * dims.head_dim && dsinks.elems == dims.heads, "{} gradients, out {}, lse {}",
           dsinks.elems, out.elems, lse.elems);
  float* const sums = scratch(ctx, kFloat * dims.heads);
  isa().attention_dsinks(ctx.threads(), sums,
                         {.out = data_of(out),
                          .qkv = {},
                          .dout = data_of(dout),
                          .dqkv = {},
                          .lse = floats_of(lse),
                          .dims = dims,
                          .scratch = nullptr,
                          .scratch_elems = 0,
                          .sinks = data_of(sinks)});
  store_gradient(ctx, dsinks, sums, beta);
}

}  // namespace

void fill_attention(KernelTable& table) {
  table.scratch.attention = attention_scratch;
  table.attention_forward = attention_forward;
  table.attention_backward = attention_backward;
  table.sinks.forward = forward_with_sinks;
  table.sinks.backward = sinks_backward;
}

}  // namespace zs::cpu
#endif
