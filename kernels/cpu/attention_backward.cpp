#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/vec_math.h"

/// Dao et al. 2022, algorithm 4. With P = exp(S - lse), S = scale q k^T and delta = rowsum(dout * out):
/// dv = P^T dout, dS = P (dout v^T - delta), dq = scale dS k, dk = scale dS^T q.
namespace zs::cpu::ZS_ISA {
namespace {

struct BackwardScratch {
  float *queries, *keys, *dout, *dqueries;  // (padded_time, width); queries times the scale
  float *keys_t, *values_t;                 // tiles (head_dim, kTile)
  float *lse, *delta;                       // (padded_time)
  float *p, *ds;                            // (kTile, kTile)
  float *dkeys, *dvalues;                   // (kTile, width)
};

BackwardScratch carve(Scratch scratch, std::int64_t time, std::int64_t width) {
  BackwardScratch s;
  for (float** block : {&s.queries, &s.keys, &s.dout, &s.dqueries, &s.keys_t, &s.values_t}) *block = scratch.take(time * width);
  for (float** block : {&s.lse, &s.delta}) *block = scratch.take(time);
  for (float** block : {&s.p, &s.ds}) *block = scratch.take(kTile * kTile);
  for (float** block : {&s.dkeys, &s.dvalues}) *block = scratch.take(kTile * width);
  return s;
}

template <class T>
void load_head(const HeadRows<T>& rows, const BackwardScratch& s, const AttentionDims& dims, std::int64_t time, std::int64_t width) {
  const std::int64_t model = rows.model, stride = 3 * model;
  load_rows(s.keys, width, rows.qkv + 2 * model, stride, time, dims, 1.0f);
  transpose_tiles(s.values_t, s.keys, width, time, dims.head_dim);
  load_rows(s.keys, width, rows.qkv + model, stride, time, dims, 1.0f);
  transpose_tiles(s.keys_t, s.keys, width, time, dims.head_dim);
  load_rows(s.queries, width, rows.qkv, stride, time, dims, 1.0f / __builtin_sqrtf(static_cast<float>(dims.head_dim)));
  load_rows(s.dout, width, rows.dout, model, time, dims, 1.0f);
  for (std::int64_t i = 0; i < time * width; ++i) s.dqueries[i] = 0.0f;
  for (std::int64_t t = 0; t < time; ++t) {
    const T* out = rows.out + t * model;
    const float* dout = s.dout + t * width;
    const bool inside = t < dims.time;
    s.lse[t] = inside ? rows.lse[t] : 0.0f;
    s.delta[t] = inside ? lane_sum<Order::in_line>(dims.head_dim,
                                                   [=](std::int64_t d, auto part) { return load(dout + d, part) * load(out + d, part); })
                        : 0.0f;
  }
}

/// p holds scores and becomes probabilities; ds holds dout v^T and becomes the scores' gradient. Rows below `first` keys are masked.
void probabilities(const BackwardScratch& s, std::int64_t queries, bool diagonal) {
  for (std::int64_t r = 0; r < kTile; ++r) {
    float *p = s.p + r * kTile, *ds = s.ds + r * kTile;
    const float lse = s.lse[queries + r], delta = s.delta[queries + r];
    const std::int64_t visible = diagonal ? r + 1 : kTile;
#pragma omp simd
    for (std::int64_t c = 0; c < kTile; ++c) {
      p[c] = c < visible ? exp_of(p[c] - lse) : 0.0f;
      ds[c] = p[c] * (ds[c] - delta);
    }
  }
}

template <class T>
void backward_head(const Attention& args, std::int64_t pair, Scratch scratch) {
  const AttentionDims& dims = args.dims;
  const std::int64_t width = round_up(dims.head_dim, 16), time = round_up(dims.time, kTile), depth = dims.head_dim;
  const HeadRows<T> rows = head_rows<T>(args, pair);
  const BackwardScratch s = carve(scratch, time, width);
  load_head(rows, s, dims, time, width);
  const std::int64_t model = rows.model;
  for (std::int64_t keys = 0; keys < time; keys += kTile) {
    for (std::int64_t i = 0; i < kTile * width; ++i) s.dkeys[i] = s.dvalues[i] = 0.0f;
    for (std::int64_t queries = keys; queries < time; queries += kTile) {
      const float *q = s.queries + queries * width, *dout = s.dout + queries * width;
      tile_product<false>({s.p, kTile}, {q, width, 1}, {s.keys_t + keys * depth, kTile}, kTile, kTile, depth);
      tile_product<false>({s.ds, kTile}, {dout, width, 1}, {s.values_t + keys * depth, kTile}, kTile, kTile, depth);
      probabilities(s, queries, queries == keys);
      tile_product<true>({s.dvalues, width}, {s.p, 1, kTile}, {dout, width}, kTile, width, kTile);
      tile_product<true>({s.dkeys, width}, {s.ds, 1, kTile}, {q, width}, kTile, width, kTile);
      tile_product<true>({s.dqueries + queries * width, width}, {s.ds, kTile, 1}, {s.keys + keys * width, width}, kTile, width, kTile);
    }
    const std::int64_t valid = min_of(kTile, dims.time - keys);
    T* dkv = rows.dqkv + keys * 3 * model;
    store_rows(dkv + model, 3 * model, s.dkeys, width, valid, dims, 1.0f);
    store_rows(dkv + 2 * model, 3 * model, s.dvalues, width, valid, dims, 1.0f);
  }
  store_rows(rows.dqkv, 3 * model, s.dqueries, width, dims.time, dims, 1.0f / __builtin_sqrtf(static_cast<float>(depth)));
}

}  // namespace

void attention_backward(int threads, const Attention& args) {
#if defined(__AMX_BF16__)
  if (args.qkv.is_bf16) return attention_backward_amx(threads, args);
#endif
  with_type(args.qkv, [&](auto tag) {
    using T = decltype(tag);
    for_each_head(threads, args, [&](std::int64_t pair, Scratch scratch) { backward_head<T>(args, pair, scratch); });
  });
}

}  // namespace zs::cpu::ZS_ISA
