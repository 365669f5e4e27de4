#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/vec_math.h"

/// Attention in bf16 with its products by tiles: scores, softmax and sums are f32, probabilities are rounded to bf16
/// before they are multiplied.
namespace zs::cpu::ZS_ISA {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();
// Rows that are a power of two apart would share few places of the first cache.
constexpr std::int64_t kScorePitch = kAmxKeys + kHalf, kPitch = kAmxKeys + kBlock;

struct ForwardScratch {
  Bf16 *rows, *queries;            // (padded_time, width)
  std::uint32_t *keys_t, *values;  // panels: (width, padded_time), (padded_time, width)
  float *scores, *result;          // (kBlock, kScorePitch), (kBlock, width)
  Bf16* p;                         // (kBlock, kPitch)
  float *largest, *lane_sums;      // (kBlock), (kBlock, kLanes); of scores before they are scaled
  std::int64_t width;
  float scale;
};

float largest_of(Vec x) {
  x = higher_of(x, (Vec)_mm512_maskz_shuffle_f32x4(0xffff, (__m512)x, (__m512)x, 0x4e));
  x = higher_of(x, (Vec)_mm512_maskz_shuffle_f32x4(0xffff, (__m512)x, (__m512)x, 0xb1));
  x = higher_of(x, (Vec)_mm512_maskz_permute_ps(0xffff, (__m512)x, 0x4e));
  return higher_of(x, (Vec)_mm512_maskz_permute_ps(0xffff, (__m512)x, 0xb1))[0];
}

/// One row of scores to exp(scale (score - running maximum)); what the row has gathered so far is rescaled. Of `keys`
/// it sees those from `hidden` up to `visible`.
void softmax_row(const ForwardScratch& s, std::int64_t r, std::int64_t hidden, std::int64_t visible,
                 std::int64_t keys) {
  float *row = s.scores + r * kScorePitch, *sums = s.lane_sums + r * kLanes;
  for (std::int64_t c = 0; c < hidden; ++c) row[c] = kMinusInfinity;
  for (std::int64_t c = visible; c < keys; ++c) row[c] = kMinusInfinity;
  const float before = s.largest[r];
  Vec most[2] = {all<Vec>(before), all<Vec>(before)};
  for (std::int64_t c = 0; c < keys; c += kBlock)
    for (int half = 0; half < 2; ++half) most[half] = higher_of(most[half], load_vec(row + c + half * kLanes));
  const float now = largest_of(higher_of(most[0], most[1])), shift = -s.scale * now;
  if (now == kMinusInfinity) {  // none of these keys is in its window
    for (std::int64_t c = 0; c < keys; ++c) s.p[r * kPitch + c] = Bf16{};
    return;
  }
  if (now > before && before != kMinusInfinity) {
    const float shrink = exp_of(s.scale * (before - now));
    for (std::int64_t d = 0; d < s.width; d += kLanes)
      store_vec(s.result + r * s.width + d, load_vec(s.result + r * s.width + d) * shrink);
    store_vec(sums, load_vec(sums) * shrink);
  }
  s.largest[r] = now;
  Vec total = load_vec(sums);
  for (std::int64_t c = 0; c < keys; c += kBlock) {
    Vec e[2];
    for (int half = 0; half < 2; ++half)
      total += e[half] =
          exp_of<Precision::bf16>(fused(load_vec(row + c + half * kLanes), all<Vec>(s.scale), all<Vec>(shift)));
    _mm512_storeu_si512(s.p + r * kPitch + c, narrow(e[0], e[1]));
  }
  store_vec(sums, total);
}

void store_queries(const Attention& args, const ForwardScratch& s, std::int64_t pair, std::int64_t first) {
  const AttentionDims& dims = args.dims;
  const std::int64_t rows = min_of(kBlock, dims.time - first);
  const HeadPlace place = head_place(dims, pair);
  for (std::int64_t r = 0; r < rows; ++r) {
    Lanes lanes;
    lanes.add(s.lane_sums + r * kLanes);
    const RowEnd end = end_of_row(reduce_sum(lanes), s.scale * s.largest[r], args.sinks, pair % dims.heads);
    const float* result = s.result + r * s.width;
    Bf16* out = elements<Bf16>(args.out) + place.out + (first + r) * place.out_stride;
    for_each_vec(0, dims.head_dim,
                 [=](std::int64_t d, auto part) { store(out + d, load(result + d, part) * end.factor, part); });
    args.lse[pair * dims.time + first + r] = end.lse;
  }
}

/// kBlock queries from `first` on, over the keys that they see, kAmxKeys at a time.
void forward_queries(const Attention& args, const ForwardScratch& s, std::int64_t pair, std::int64_t first,
                     std::int64_t time) {
  for (std::int64_t i = 0; i < kBlock * kLanes; ++i) s.lane_sums[i] = 0.0f;
  for (std::int64_t r = 0; r < kBlock; ++r) s.largest[r] = kMinusInfinity;
  const std::int64_t seen = first + kBlock, begin = first_key(args.dims, first) / kBlock * kBlock;
  for (std::int64_t key = begin; key < seen; key += kAmxKeys) {
    const std::int64_t keys = min_of(kAmxKeys, seen - key);
    for (std::int64_t c = 0; c < keys; c += kBlock)
      amx_block<false>({s.scores + c, kScorePitch}, {s.queries + first * s.width, s.width},
                       s.keys_t + (key + c) / 2 * s.width, s.width);
    for (std::int64_t r = 0; r < kBlock; ++r)
      softmax_row(s, r, min_of(keys, first_key(args.dims, first + r) - key), min_of(keys, first + r + 1 - key), keys);
    for (std::int64_t d = 0; d < s.width; d += kBlock) {
      const AmxResult result{s.result + d, s.width};
      const AmxPanel values = s.values + (d * time + key * kBlock) / 2;
      key == begin ? amx_block<false>(result, {s.p, kPitch}, values, keys)
                   : amx_block<true>(result, {s.p, kPitch}, values, keys);
    }
  }
  store_queries(args, s, pair, first);
}

void forward_head(const Attention& args, std::int64_t pair, Scratch scratch) {
  const AttentionDims& dims = args.dims;
  const std::int64_t width = round_up(dims.head_dim, kBlock), time = round_up(dims.time, kTile);
  const HeadPlace place = head_place(dims, pair);
  const Bf16* const qkv = elements<const Bf16>(args.qkv);
  ForwardScratch s;
  s.width = width;
  s.scale = 1.0f / __builtin_sqrtf(static_cast<float>(dims.head_dim));
  for (Bf16** block : {&s.rows, &s.queries}) *block = scratch.take_as<Bf16>(time * width / 2);
  for (std::uint32_t** block : {&s.keys_t, &s.values}) *block = scratch.take_as<std::uint32_t>(time * width / 2);
  s.scores = scratch.take(kBlock * kScorePitch);
  s.p = scratch.take_as<Bf16>(kBlock * kPitch / 2);
  s.result = scratch.take(kBlock * width);
  s.largest = scratch.take(kBlock);
  s.lane_sums = scratch.take(kBlock * kLanes);
  const TileScope tiles;
  copy_rows(s.rows, width, qkv + place.key, place.stride, time, dims);
  pack_transposed(s.keys_t, s.rows, width, time);
  copy_rows(s.rows, width, qkv + place.value, place.stride, time, dims);
  pack_panels(s.values, s.rows, time, width);
  copy_rows(s.queries, width, qkv + place.query, place.stride, time, dims);
  for (std::int64_t first = 0; first < dims.time; first += kBlock) forward_queries(args, s, pair, first, time);
}

}  // namespace

void attention_forward_amx(int threads, const Attention& args) {
  for_each_head(threads, args, [&](std::int64_t pair, Scratch scratch) { forward_head(args, pair, scratch); });
}

}  // namespace zs::cpu::ZS_ISA
