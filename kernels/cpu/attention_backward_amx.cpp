#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/vec_math.h"

/// The formulas of attention_backward.cpp with every matrix of scores transposed, keys by queries, so that
/// probabilities and their gradients are left operands as they are: dv = P^T dout, dk = scale dS^T q, dq^T = scale k^T
/// dS^T. Both are rounded to bf16 first. A probability of kCertain or more counts as 1 in dS.
namespace zs::cpu::ZS_ISA {
namespace {

constexpr std::int64_t kKeys = kAttentionTile;  // taken together: two blocks
// Probability from which on it counts as 1: what it is short of 1 by is less than what rounding `out` to bf16 leaves in
// delta.
constexpr float kCertain = 1 - 0x1.0p-10f;

struct BackwardScratch {
  Bf16 *queries, *keys, *values, *dout;               // (padded_time, width)
  Bf16* keys_t;                                       // (width, pitch)
  std::uint32_t *queries_p, *dout_p;                  // panels of (padded_time, width)
  std::uint32_t *queries_t, *dout_t;                  // panels of (width, padded_time)
  float *dqueries_t, *dqueries;                       // (width, pitch), (padded_time, width)
  Bf16 *p, *ds;                                       // (kKeys, pitch)
  std::uint32_t* ds_panel;                            // (kKeys, kBlock)
  float *scores, *dscores, *minus_lse, *minus_delta;  // (kBlock, kBlock) twice, (padded_time) twice
  // Results: where heads share keys (padded_time, width), else one (kKeys, width) for both, one after the other.
  float *dkeys, *dvalues;
  std::int64_t time, width;
  std::int64_t pitch;   // pitch of rows over time: a power of two would share few places of the first cache
  std::int64_t window;  // keys that a query sees at most
  float scale;
};

BackwardScratch carve(Scratch scratch, std::int64_t time, std::int64_t width, bool is_shared) {
  BackwardScratch s;
  s.time = time;
  s.width = width;
  s.pitch = time + kBlock;
  for (Bf16** block : {&s.queries, &s.keys, &s.values, &s.dout}) *block = scratch.take_as<Bf16>(time * width / 2);
  for (std::uint32_t** block : {&s.queries_p, &s.dout_p, &s.queries_t, &s.dout_t})
    *block = scratch.take_as<std::uint32_t>(time * width / 2);
  s.keys_t = scratch.take_as<Bf16>(s.pitch * width / 2);
  s.dqueries_t = scratch.take(s.pitch * width);
  s.dqueries = reinterpret_cast<float*>(s.queries_p);  // when these have been used
  for (Bf16** block : {&s.p, &s.ds}) *block = scratch.take_as<Bf16>(kKeys * s.pitch / 2);
  s.ds_panel = scratch.take_as<std::uint32_t>(kKeys * kBlock / 2);
  for (float** block : {&s.scores, &s.dscores}) *block = scratch.take(kBlock * kBlock);
  s.dkeys = scratch.take((is_shared ? time : kKeys) * width);
  s.dvalues = is_shared ? scratch.take(time * width) : s.dkeys;
  for (float** block : {&s.minus_lse, &s.minus_delta}) *block = scratch.take(time);
  return s;
}

void load_keys(const Attention& args, std::int64_t pair, const BackwardScratch& s) {
  const HeadPlace place = head_place(args.dims, pair);
  const Bf16* const qkv = elements<const Bf16>(args.qkv);
  const std::int64_t time = s.time, width = s.width;
  copy_rows(s.keys, width, qkv + place.key, place.stride, time, args.dims);
  copy_rows(s.values, width, qkv + place.value, place.stride, time, args.dims);
  pack_panels(s.queries_p, s.keys, time, width);  // for the moment: its words are those of keys_t, transposed
  for (std::int64_t d = 0; d < width; d += kHalf)
    for (std::int64_t t = 0; t < time; t += kBlock)
      transpose_words(reinterpret_cast<std::uint32_t*>(s.keys_t + d * s.pitch + t), s.pitch / 2,
                      s.queries_p + (d / kBlock * kBlock * time + t * kBlock) / 2 + d % kBlock, kBlock);
}

void load_queries(const Attention& args, std::int64_t pair, const BackwardScratch& s) {
  const AttentionDims& dims = args.dims;
  const HeadPlace place = head_place(dims, pair);
  const std::int64_t time = s.time, width = s.width;
  copy_rows(s.queries, width, elements<const Bf16>(args.qkv) + place.query, place.stride, time, dims);
  copy_rows(s.dout, width, elements<const Bf16>(args.dout) + place.out, place.out_stride, time, dims);
  pack_panels(s.queries_p, s.queries, time, width);
  pack_panels(s.dout_p, s.dout, time, width);
  pack_transposed(s.queries_t, s.queries, width, time);
  pack_transposed(s.dout_t, s.dout, width, time);
  for (std::int64_t i = 0; i < s.pitch * width; ++i) s.dqueries_t[i] = 0.0f;
  for (std::int64_t t = 0; t < time; ++t) {
    const Bf16 *out = elements<const Bf16>(args.out) + place.out + t * place.out_stride, *dout = s.dout + t * width;
    const bool inside = t < dims.time;
    s.minus_lse[t] = inside ? -args.lse[pair * dims.time + t] : 0.0f;
    s.minus_delta[t] =
        inside
            ? -lane_sum<Order::in_line>(
                  dims.head_dim, [=](std::int64_t d, auto part) { return load(dout + d, part) * load(out + d, part); })
            : 0.0f;
  }
}

/// Two rows of a block of scores and dout v^T, keys `key` and `key` + 1, queries `query` ..: to p, ds and one row of
/// ds_panel.
void probabilities(const BackwardScratch& s, std::int64_t first, std::int64_t key, std::int64_t query) {
  const std::int64_t at = (key - first) % kBlock * kBlock;
  __m512i p[2], ds[2];
  for (int r = 0; r < 2; ++r) {
    Vec e[2], de[2];
    for (int half = 0; half < 2; ++half) {
      const std::int64_t q = query + half * kHalf, in = at + r * kBlock + half * kHalf;
      const __m512i index = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(q - key - r)),
                                             _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
      const __mmask16 is_seen = _mm512_cmpge_epi32_mask(index, _mm512_setzero_si512()) &
                                _mm512_cmplt_epi32_mask(index, _mm512_set1_epi32(static_cast<int>(s.window)));
      const Vec power = fused(load_vec(s.scores + in), all<Vec>(s.scale), load_vec(s.minus_lse + q));
      e[half] = (Vec)_mm512_maskz_mov_ps(is_seen, (__m512)exp_of<Precision::bf16>(power));
      const __mmask16 is_open = _mm512_cmp_ps_mask((__m512)e[half], (__m512)all<Vec>(kCertain), _CMP_NGE_UQ);
      de[half] = (Vec)_mm512_maskz_mov_ps(is_open,
                                          (__m512)(e[half] * (load_vec(s.dscores + in) + load_vec(s.minus_delta + q))));
    }
    p[r] = narrow(e[0], e[1]);
    ds[r] = narrow(de[0], de[1]);
    _mm512_storeu_si512(s.p + (key - first + r) * s.pitch + query, p[r]);
    _mm512_storeu_si512(s.ds + (key - first + r) * s.pitch + query, ds[r]);
  }
  interleave(s.ds_panel + (key - first) / 2 * kBlock, ds[0], ds[1]);
}

/// kKeys keys from `first` on, and kBlock queries: p, ds and their part of dqueries_t.
void backward_block(const BackwardScratch& s, std::int64_t first, std::int64_t query) {
  for (std::int64_t key = first; key < first + kKeys; key += kBlock) {
    const std::int64_t panel = query / 2 * s.width;
    amx_block<false>({s.scores, kBlock}, {s.keys + key * s.width, s.width}, s.queries_t + panel, s.width);
    amx_block<false>({s.dscores, kBlock}, {s.values + key * s.width, s.width}, s.dout_t + panel, s.width);
    for (std::int64_t r = 0; r < kBlock; r += 2) probabilities(s, first, key + r, query);
  }
  for (std::int64_t d = 0; d < s.width; d += kBlock)
    amx_block<true>({s.dqueries_t + d * s.pitch + query, s.pitch}, {s.keys_t + d * s.pitch + first, s.pitch},
                    s.ds_panel, kKeys);
}

struct Queries {
  std::int64_t first, end;
};

/// out (kKeys, width) := [out +] left (kKeys, `queries`) * right, which is packed in panels.
void key_product(const BackwardScratch& s, float* out, bool adds, const Bf16* left, const std::uint32_t* right,
                 Queries queries) {
  for (std::int64_t r = 0; r < kKeys; r += kBlock)
    for (std::int64_t d = 0; d < s.width; d += kBlock) {
      const AmxResult c{out + r * s.width + d, s.width};
      const AmxLeft a{left + r * s.pitch + queries.first, s.pitch};
      const AmxPanel b = right + (d * s.time + queries.first * kBlock) / 2;
      adds ? amx_block<true>(c, a, b, queries.end - queries.first)
           : amx_block<false>(c, a, b, queries.end - queries.first);
    }
}

/// One query head of a group. The first sets dkeys and dvalues, which the others add to and the last one stores.
void backward_head(const Attention& args, HeadGroup group, std::int64_t pair, const BackwardScratch& s) {
  const AttentionDims& dims = args.dims;
  const HeadPlace place = head_place(dims, pair);
  const bool adds = pair > group.first, is_last = pair + 1 == group.first + group.count;
  Bf16* const dqkv = elements<Bf16>(args.dqkv);
  load_queries(args, pair, s);
  for (std::int64_t keys = 0; keys < s.time; keys += kKeys) {
    const Queries queries{keys, end_of_queries(dims, keys + kKeys, s.time, kBlock)};  // that see any of these keys
    for (std::int64_t query = keys; query < queries.end; query += kBlock) backward_block(s, keys, query);
    const std::int64_t at = group.count > 1 ? keys * s.width : 0, row = keys * place.stride,
                       valid = min_of(kKeys, dims.time - keys);
    key_product(s, s.dkeys + at, adds, s.ds, s.queries_p, queries);
    if (is_last) store_rows(dqkv + place.key + row, place.stride, s.dkeys + at, s.width, valid, dims, s.scale);
    key_product(s, s.dvalues + at, adds, s.p, s.dout_p, queries);
    if (is_last) store_rows(dqkv + place.value + row, place.stride, s.dvalues + at, s.width, valid, dims, 1.0f);
  }
  for (std::int64_t t = 0; t < s.time; t += kHalf)
    for (std::int64_t d = 0; d < s.width; d += kHalf)
      transpose_words(reinterpret_cast<std::uint32_t*>(s.dqueries + t * s.width + d), s.width,
                      reinterpret_cast<const std::uint32_t*>(s.dqueries_t + d * s.pitch + t), s.pitch);
  store_rows(dqkv + place.query, place.stride, s.dqueries, s.width, dims.time, dims, s.scale);
}

void backward_group(const Attention& args, HeadGroup group, Scratch scratch) {
  const AttentionDims& dims = args.dims;
  BackwardScratch s = carve(scratch, round_up(dims.time, kKeys), round_up(dims.head_dim, kBlock), group.count > 1);
  s.scale = 1.0f / __builtin_sqrtf(static_cast<float>(dims.head_dim));
  s.window = window_of(dims);
  const TileScope tiles;
  load_keys(args, group.first, s);
  for (std::int64_t pair = group.first; pair < group.first + group.count; ++pair) backward_head(args, group, pair, s);
}

}  // namespace

void attention_backward_amx(int threads, const Attention& args) {
  for_each_group(threads, args, [&](HeadGroup group, Scratch scratch) { backward_group(args, group, scratch); });
}

}  // namespace zs::cpu::ZS_ISA
