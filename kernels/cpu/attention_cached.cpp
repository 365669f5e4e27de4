#if defined(ZS_ISA)
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/isa_families.h"

namespace zs::cpu::ZS_ISA {
namespace {

/// One query of one head.
struct CachedQuery {
  std::int64_t begin, end;       // rows of the cache that it sees
  std::int64_t query, key, out;  // first elements: of qkv, of a row of the cache, of out
  std::int64_t head;
};

CachedQuery cached_query(const CachedAttention& args, std::int64_t number) {
  const AttentionDims& dims = args.dims;
  const std::int64_t token = number / dims.heads, head = number % dims.heads, end = args.first + token + 1;
  return {.begin = dims.window > 0 && dims.window < end ? end - dims.window : 0,
          .end = end,
          .query = token * qkv_width_of(dims) + head * dims.head_dim,
          .key = head / (dims.heads / kv_heads_of(dims)) * dims.head_dim,
          .out = (token * dims.heads + head) * dims.head_dim,
          .head = head};
}

/// scores := the weights of the rows, not normalised. What they are normalised by.
template <class T>
float weigh_rows(const CachedAttention& args, const CachedQuery& place, float* scores) {
  const std::int64_t width = args.dims.head_dim, stride = 2 * kv_heads_of(args.dims) * width,
                     count = place.end - place.begin;
  const T* const query = elements<const T>(args.qkv) + place.query;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(width));
  float largest = -__builtin_inff();
  for (std::int64_t i = 0; i < count; ++i) {
    const T* const key = elements<const T>(args.cache) + (place.begin + i) * stride + place.key;
    scores[i] = scale * lane_sum<kOwnOrder<T>>(width, [=](std::int64_t d, auto part) {
                  return load(query + d, part) * load(key + d, part);
                });
    largest = scores[i] > largest ? scores[i] : largest;
  }
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) scores[i] = exp_of(scores[i] - largest);
  float sum = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) sum += scores[i];
  return end_of_row(sum, largest, args.sinks, place.head).factor;
}

template <class T>
void attend_to_cache(const CachedAttention& args, std::int64_t number) {
  const std::int64_t width = args.dims.head_dim, kept = kv_heads_of(args.dims) * width, stride = 2 * kept;
  const CachedQuery place = cached_query(args, number);
  float* const scores = args.scores + number * (args.first + args.dims.time + width);
  float* const sums = scores + args.first + args.dims.time;
  const float factor = weigh_rows<T>(args, place, scores);
  for (std::int64_t d = 0; d < width; ++d) sums[d] = 0.0f;
  for (std::int64_t i = 0; i < place.end - place.begin; ++i) {
    const T* const value = elements<const T>(args.cache) + (place.begin + i) * stride + kept + place.key;
    const float weight = scores[i];
#pragma omp simd
    for (std::int64_t d = 0; d < width; ++d) sums[d] += weight * to_float(value[d]);
  }
  T* const out = elements<T>(args.out) + place.out;
  for (std::int64_t d = 0; d < width; ++d) out[d] = from_float<T>(sums[d] * factor);
}

void attention_cached(int threads, const CachedAttention& args) {
  const std::int64_t queries = args.dims.time * args.dims.heads;
  with_type(args.qkv, [&](auto tag) {
    using T = decltype(tag);
    parallel_ranges(split_rows(threads, queries, 2 * (args.first + args.dims.time) * args.dims.head_dim),
                    [=](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t number = begin; number < end; ++number) attend_to_cache<T>(args, number);
                    });
  });
}

}  // namespace

void fill_attention_cached(Isa& isa) { isa.attention_cached = attention_cached; }

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

void cached_with_sinks(ExecContext& ctx, Buffer out, Buffer scores, Buffer qkv, Buffer cache, Buffer sinks,
                       const AttentionDims& dims, std::int64_t first) {
  checks::attention_cached(out, scores, qkv, cache, dims, first);
  ZS_CHECK(sinks.empty() || sinks.elems == dims.heads, "{} sinks for {} heads", sinks.elems, dims.heads);
  isa().attention_cached(ctx.threads(), {.out = data_of(out),
                                         .qkv = data_of(qkv),
                                         .cache = data_of(cache),
                                         .scores = scores.as<float>(),
                                         .dims = dims,
                                         .first = first,
                                         .sinks = data_or_none(sinks)});
}

void attention_cached(ExecContext& ctx, Buffer out, Buffer scores, Buffer qkv, Buffer cache, const AttentionDims& dims,
                      std::int64_t first) {
  cached_with_sinks(ctx, out, scores, qkv, cache, {}, dims, first);
}

}  // namespace

void fill_attention_cached(KernelTable& table) {
  table.attention_cached = attention_cached;
  table.sinks.cached = cached_with_sinks;
}

}  // namespace zs::cpu
#endif
