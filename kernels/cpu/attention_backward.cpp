#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/vec_math.h"

/// Dao et al. 2022, algorithm 4. With P = exp(S - lse), S = scale q k^T and delta = rowsum(dout * out):
/// dv = P^T dout, dS = P (dout v^T - delta), dq = scale dS k, dk = scale dS^T q. Query heads that share keys add to dk
/// and dv one after the other. Where a probability is 1 its dS is 0, as it is where delta is the sum of P dout v^T:
/// what is left of two equal sums that are added up in two orders would be multiplied by keys and queries that are
/// large there (docs/decisions/0044).
namespace zs::cpu::ZS_ISA {
namespace {

struct BackwardScratch {
  float *queries, *keys, *dout, *dqueries;  // (padded_time, width); queries times the scale
  float *keys_t, *values_t;                 // tiles (head_dim, kTile)
  float *lse, *delta;                       // (padded_time)
  float *p, *ds;                            // (kTile, kTile)
  float *dkeys, *dvalues;                   // (kTile, width), or (padded_time, width) where heads share keys
};

BackwardScratch carve(Scratch scratch, std::int64_t time, std::int64_t width, bool is_shared) {
  BackwardScratch s;
  for (float** block : {&s.queries, &s.keys, &s.dout, &s.dqueries, &s.keys_t, &s.values_t})
    *block = scratch.take(time * width);
  for (float** block : {&s.lse, &s.delta}) *block = scratch.take(time);
  for (float** block : {&s.p, &s.ds}) *block = scratch.take(kTile * kTile);
  for (float** block : {&s.dkeys, &s.dvalues}) *block = scratch.take((is_shared ? time : kTile) * width);
  return s;
}

template <class T>
void load_keys(const Attention& args, std::int64_t pair, const BackwardScratch& s, std::int64_t time,
               std::int64_t width) {
  const AttentionDims& dims = args.dims;
  const HeadPlace place = head_place(dims, pair);
  const T* const qkv = elements<const T>(args.qkv);
  load_rows(s.keys, width, qkv + place.value, place.stride, time, dims, 1.0f);
  transpose_tiles(s.values_t, s.keys, width, time, dims.head_dim);
  load_rows(s.keys, width, qkv + place.key, place.stride, time, dims, 1.0f);
  transpose_tiles(s.keys_t, s.keys, width, time, dims.head_dim);
}

template <class T>
void load_queries(const Attention& args, std::int64_t pair, const BackwardScratch& s, std::int64_t time,
                  std::int64_t width) {
  const AttentionDims& dims = args.dims;
  const HeadPlace place = head_place(dims, pair);
  load_rows(s.queries, width, elements<const T>(args.qkv) + place.query, place.stride, time, dims,
            1.0f / __builtin_sqrtf(static_cast<float>(dims.head_dim)));
  load_rows(s.dout, width, elements<const T>(args.dout) + place.out, place.out_stride, time, dims, 1.0f);
  for (std::int64_t i = 0; i < time * width; ++i) s.dqueries[i] = 0.0f;
  for (std::int64_t t = 0; t < time; ++t) {
    const T* out = elements<const T>(args.out) + place.out + t * place.out_stride;
    const float* dout = s.dout + t * width;
    const bool inside = t < dims.time;
    s.lse[t] = inside ? args.lse[pair * dims.time + t] : 0.0f;
    s.delta[t] = inside ? lane_sum<Order::in_line>(
                              dims.head_dim,
                              [=](std::int64_t d, auto part) { return load(dout + d, part) * load(out + d, part); })
                        : 0.0f;
  }
}

/// p holds scores and becomes probabilities; ds holds dout v^T and becomes the scores' gradient. 0 where the key is not
/// seen.
void probabilities(const BackwardScratch& s, const AttentionDims& dims, std::int64_t queries, std::int64_t keys) {
  for (std::int64_t r = 0; r < kTile; ++r) {
    float *p = s.p + r * kTile, *ds = s.ds + r * kTile;
    const float lse = s.lse[queries + r], delta = s.delta[queries + r];
    const std::int64_t hidden = first_key(dims, queries + r) - keys, visible = queries + r + 1 - keys;
#pragma omp simd
    for (std::int64_t c = 0; c < kTile; ++c) {
      p[c] = c < visible && c >= hidden ? exp_of(p[c] - lse) : 0.0f;
      ds[c] = p[c] >= 1.0f ? 0.0f : p[c] * (ds[c] - delta);
    }
  }
}

/// Adds what the queries from `keys` on give: to the keys' dkeys and dvalues, and to their own dqueries.
void add_tiles(const BackwardScratch& s, const AttentionDims& dims, float* dkeys, float* dvalues, std::int64_t keys,
               std::int64_t time, std::int64_t width) {
  const std::int64_t depth = dims.head_dim, end = end_of_queries(dims, keys + kTile, time, kTile);
  for (std::int64_t queries = keys; queries < end; queries += kTile) {
    const float *q = s.queries + queries * width, *dout = s.dout + queries * width;
    tile_product<false>({s.p, kTile}, {q, width, 1}, {s.keys_t + keys * depth, kTile}, kTile, kTile, depth);
    tile_product<false>({s.ds, kTile}, {dout, width, 1}, {s.values_t + keys * depth, kTile}, kTile, kTile, depth);
    probabilities(s, dims, queries, keys);
    tile_product<true>({dvalues, width}, {s.p, 1, kTile}, {dout, width}, kTile, width, kTile);
    tile_product<true>({dkeys, width}, {s.ds, 1, kTile}, {q, width}, kTile, width, kTile);
    tile_product<true>({s.dqueries + queries * width, width}, {s.ds, kTile, 1}, {s.keys + keys * width, width}, kTile,
                       width, kTile);
  }
}

template <class T>
void backward_group(const Attention& args, HeadGroup group, Scratch scratch) {
  const AttentionDims& dims = args.dims;
  const std::int64_t width = round_up(dims.head_dim, 16), time = round_up(dims.time, kTile), depth = dims.head_dim;
  const bool is_shared = group.count > 1;
  const BackwardScratch s = carve(scratch, time, width, is_shared);
  T* const dqkv = elements<T>(args.dqkv);
  load_keys<T>(args, group.first, s, time, width);
  for (std::int64_t pair = group.first; pair < group.first + group.count; ++pair) {
    const HeadPlace place = head_place(dims, pair);
    load_queries<T>(args, pair, s, time, width);
    for (std::int64_t keys = 0; keys < time; keys += kTile) {
      const std::int64_t at = is_shared ? keys * width : 0, row = keys * place.stride,
                         valid = min_of(kTile, dims.time - keys);
      float *dkeys = s.dkeys + at, *dvalues = s.dvalues + at;
      if (pair == group.first)
        for (std::int64_t i = 0; i < kTile * width; ++i) dkeys[i] = dvalues[i] = 0.0f;
      add_tiles(s, dims, dkeys, dvalues, keys, time, width);
      if (pair + 1 < group.first + group.count) continue;
      store_rows(dqkv + place.key + row, place.stride, dkeys, width, valid, dims, 1.0f);
      store_rows(dqkv + place.value + row, place.stride, dvalues, width, valid, dims, 1.0f);
    }
    store_rows(dqkv + place.query, place.stride, s.dqueries, width, dims.time, dims,
               1.0f / __builtin_sqrtf(static_cast<float>(depth)));
  }
}

/// Gradient of a head's sink, which has a probability in each row and no value: minus the sum of that times delta.
template <class T>
float dsink_of(const Attention& args, std::int64_t head) {
  const AttentionDims& dims = args.dims;
  const float sink = sink_of(args.sinks, head);
  double sum = 0;
  for (std::int64_t batch = 0; batch < dims.batch; ++batch) {
    const std::int64_t pair = batch * dims.heads + head;
    const HeadPlace place = head_place(dims, pair);
    for (std::int64_t t = 0; t < dims.time; ++t) {
      const std::int64_t at = place.out + t * place.out_stride;
      const T *const out = elements<const T>(args.out) + at, *const dout = elements<const T>(args.dout) + at;
      const float delta = lane_sum<kOwnOrder<T>>(
          dims.head_dim, [=](std::int64_t d, auto part) { return load(dout + d, part) * load(out + d, part); });
      sum -= static_cast<double>(exp_of(sink - args.lse[pair * dims.time + t]) * delta);
    }
  }
  return static_cast<float>(sum);
}

}  // namespace

void attention_dsinks(int threads, float* sums, const Attention& args) {
  const std::int64_t rows = args.dims.batch * args.dims.time;
  with_type(args.out, [&](auto tag) {
    using T = decltype(tag);
    parallel_ranges(split_rows(threads, args.dims.heads, rows * args.dims.head_dim),
                    [=](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t head = begin; head < end; ++head) sums[head] = dsink_of<T>(args, head);
                    });
  });
}

void attention_backward(int threads, const Attention& args) {
#if defined(__AMX_BF16__)
  if (args.qkv.is_bf16) return attention_backward_amx(threads, args);
#endif
  with_type(args.qkv, [&](auto tag) {
    using T = decltype(tag);
    for_each_group(threads, args, [&](HeadGroup group, Scratch scratch) { backward_group<T>(args, group, scratch); });
  });
}

}  // namespace zs::cpu::ZS_ISA
