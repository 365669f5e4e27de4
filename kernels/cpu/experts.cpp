#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/accumulators.h"
#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

/// The choice of experts, and rows on their way to them and back. All but the sort is by token or row, so that the bits
/// are the same for every number of threads.
namespace zs::cpu {
namespace {

constexpr std::int64_t kWorthTeam = 32768;

void check(const RouteDims& d) {
  ZS_CHECK(d.experts > 0 && d.chosen > 0 && d.chosen <= d.experts, "{} of {} experts", d.chosen, d.experts);
}

const std::int32_t* ints_of(const Buffer& buffer, std::int64_t elems) {
  ZS_CHECK(buffer.device == DeviceKind::cpu && buffer.dtype == DType::i32 && buffer.elems == elems,
           "{} {} elements, expected {} of i32", buffer.elems, name_of(buffer.dtype), elems);
  return buffer.as<std::int32_t>();
}

float* sized_floats_of(const Buffer& buffer, std::int64_t elems) {
  ZS_CHECK(buffer.dtype == DType::f32 && buffer.elems == elems, "{} {} elements, expected {} of f32", buffer.elems,
           name_of(buffer.dtype), elems);
  return cpu::floats_of(buffer);
}

/// scores := those of a token's logits.
void scores_of(float* scores, const float* logits, const RouteDims& d) {
  if (d.scores == RouterScores::sigmoid) {
    for (std::int64_t e = 0; e < d.experts; ++e) scores[e] = 1 / (1 + std::exp(-logits[e]));
    return;
  }
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t e = 0; e < d.experts; ++e) largest = std::max(largest, logits[e]);
  double sum = 0;
  for (std::int64_t e = 0; e < d.experts; ++e) sum += scores[e] = std::exp(logits[e] - largest);
  for (std::int64_t e = 0; e < d.experts; ++e) scores[e] = static_cast<float>(scores[e] / sum);
}

/// A sum of scores that others are divided by: not 0.
float sum_of(const float* scores, const std::int32_t* ids, std::int64_t chosen) {
  double sum = 0;
  for (std::int64_t s = 0; s < chosen; ++s) sum += scores[ids[s]];
  return static_cast<float>(std::max(sum, 1e-20));
}

/// The numbers of the largest values, the largest first, and of equals the lower number.
void choose(std::int32_t* ids, const float* values, const RouteDims& d) {
  for (std::int64_t count = 0, e = 0; e < d.experts; ++e) {
    std::int64_t at = count;
    while (at > 0 && is_above(values[e], values[ids[at - 1]])) --at;
    if (at == d.chosen) continue;
    count = std::min(count + 1, d.chosen);
    for (std::int64_t s = count - 1; s > at; --s) ids[s] = ids[s - 1];
    ids[at] = static_cast<std::int32_t>(e);
  }
}

void route(ExecContext& ctx, Buffer weights, Buffer ids, Buffer logits, Buffer bias, const RouteDims& d) {
  check(d);
  const float* const in = sized_floats_of(logits, d.tokens * d.experts);
  const float* const added = bias.empty() ? nullptr : sized_floats_of(bias, d.experts);
  float* const out = sized_floats_of(weights, d.tokens * d.chosen);
  auto* const chosen = const_cast<std::int32_t*>(ints_of(ids, d.tokens * d.chosen));
#pragma omp parallel num_threads(ctx.threads()) if (d.tokens * d.experts > kWorthTeam)
  {
    std::vector<float> scores(static_cast<std::size_t>(d.experts)), values(scores);
#pragma omp for
    for (std::int64_t t = 0; t < d.tokens; ++t) {
      scores_of(scores.data(), in + t * d.experts, d);
      // Without a bias the logits have the scores' order, and those that rounding makes equal still differ.
      if (added == nullptr) std::copy_n(in + t * d.experts, d.experts, values.begin());
      for (std::int64_t e = 0; added != nullptr && e < d.experts; ++e)
        values[static_cast<std::size_t>(e)] = scores[static_cast<std::size_t>(e)] + added[e];
      std::int32_t* const own = chosen + t * d.chosen;
      choose(own, values.data(), d);
      const float divisor = d.normalizes ? sum_of(scores.data(), own, d.chosen) : 1.0f;
      for (std::int64_t s = 0; s < d.chosen; ++s)
        out[t * d.chosen + s] = scores[static_cast<std::size_t>(own[s])] / divisor * d.factor;
    }
  }
}

/// grads: room for those of the scores. With S the sum of the scores p that were chosen, w = factor p / S.
void route_gradient(float* dlogits, const float* dweights, const std::int32_t* ids, const float* scores, float* grads,
                    const RouteDims& d) {
  std::fill_n(grads, d.experts, 0.0f);
  const float divisor = d.normalizes ? sum_of(scores, ids, d.chosen) : 1.0f;
  double along = 0;
  for (std::int64_t s = 0; d.normalizes && s < d.chosen; ++s) along += dweights[s] * (scores[ids[s]] / divisor);
  for (std::int64_t s = 0; s < d.chosen; ++s)
    grads[ids[s]] = (dweights[s] - static_cast<float>(along)) * (d.factor / divisor);
  double mean = 0;
  for (std::int64_t s = 0; d.scores == RouterScores::softmax && s < d.chosen; ++s)
    mean += grads[ids[s]] * scores[ids[s]];
  for (std::int64_t e = 0; e < d.experts; ++e)
    dlogits[e] = d.scores == RouterScores::softmax ? scores[e] * (grads[e] - static_cast<float>(mean))
                                                   : grads[e] * scores[e] * (1 - scores[e]);
}

void route_backward(ExecContext& ctx, Buffer dlogits, Buffer dweights, Buffer ids, Buffer logits, const RouteDims& d) {
  check(d);
  const float *const in = sized_floats_of(logits, d.tokens * d.experts), *const dw = sized_floats_of(
                                                                             dweights, d.tokens * d.chosen);
  const std::int32_t* const chosen = ints_of(ids, d.tokens * d.chosen);
  float* const out = sized_floats_of(dlogits, d.tokens * d.experts);
#pragma omp parallel num_threads(ctx.threads()) if (d.tokens * d.experts > kWorthTeam)
  {
    std::vector<float> scores(static_cast<std::size_t>(d.experts)), grads(scores);
#pragma omp for
    for (std::int64_t t = 0; t < d.tokens; ++t) {
      scores_of(scores.data(), in + t * d.experts, d);
      route_gradient(out + t * d.experts, dw + t * d.chosen, chosen + t * d.chosen, scores.data(), grads.data(), d);
    }
  }
}

/// By counting: one pass over the ids counts, one places.
void sort_rows(ExecContext&, const SortedRows& rows, Buffer ids, std::int64_t experts) {
  const std::int32_t* const in = ints_of(ids, ids.elems);
  auto* const order = const_cast<std::int32_t*>(ints_of(rows.order, ids.elems));
  auto* const places = const_cast<std::int32_t*>(ints_of(rows.places, ids.elems));
  ZS_CHECK(ids.elems <= std::numeric_limits<std::int32_t>::max(), "{} rows", ids.elems);
  ZS_CHECK(rows.offsets.dtype == DType::i64 && rows.offsets.elems == experts + 1, "{} {} offsets of {} experts",
           rows.offsets.elems, name_of(rows.offsets.dtype), experts);
  check_indices("expert", in, ids.elems, experts);
  auto* const offsets = rows.offsets.as<std::int64_t>();
  std::fill_n(offsets, experts + 1, std::int64_t{0});
  for (std::int64_t i = 0; i < ids.elems; ++i) ++offsets[in[i] + 1];
  float* const shares = sized_floats_of(rows.shares, experts);
  const double all = static_cast<double>(std::max<std::int64_t>(1, ids.elems));
  for (std::int64_t e = 0; e < experts; ++e) shares[e] = static_cast<float>(static_cast<double>(offsets[e + 1]) / all);
  for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  std::vector<std::int64_t> next(offsets, offsets + experts);
  for (std::int64_t i = 0; i < ids.elems; ++i) {
    const std::int64_t place = next[static_cast<std::size_t>(in[i])]++;
    order[place] = static_cast<std::int32_t>(i);
    places[i] = static_cast<std::int32_t>(place);
  }
}

void gather_rows(ExecContext& ctx, Buffer y, Buffer x, Buffer order, std::int64_t width) {
  checks::same_dtype(y, x);
  const std::int64_t rows = order.elems, tokens = x.elems / std::max<std::int64_t>(width, 1);
  ZS_CHECK(y.elems == rows * width && x.elems == tokens * width && (tokens == 0 || rows % tokens == 0),
           "{} elements of {} rows, {} of x", y.elems, rows, x.elems);
  if (y.elems == 0) return;
  const std::int32_t* const at = ints_of(order, rows);
  const std::int64_t chosen = rows / tokens, bytes = width * size_of(x.dtype);
  const auto* const from = static_cast<const std::byte*>(x.data);
  auto* const to = static_cast<std::byte*>(y.data);
#pragma omp parallel for num_threads(ctx.threads()) if (y.elems > kWorthTeam)
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * bytes, from + at[r] / chosen * bytes, static_cast<std::size_t>(bytes));
}

/// Tokens, and the rows of each; a place of -1 is a row that is elsewhere.
struct Combination {
  std::int64_t tokens, chosen, width;
  const float* weights;  // null: 1
  const std::int32_t* places;

  float weight(std::int64_t assignment) const { return weights == nullptr ? 1.0f : weights[assignment]; }
};

/// `places` of so many rows; where some are elsewhere, y has room for any number.
void check_places(const Buffer& places, const Buffer& y, std::int64_t width) {
  const std::int32_t* const at = ints_of(places, places.elems);
  const std::int64_t room = y.elems / std::max<std::int64_t>(1, width);
  std::int64_t elsewhere = 0;
  for (std::int64_t i = 0; i < places.elems; ++i) {
    ZS_CHECK(at[i] >= -1 && at[i] < room, "place {} of {} rows", at[i], room);
    elsewhere += at[i] < 0 ? 1 : 0;
  }
  ZS_CHECK(y.elems == room * width && (elsewhere > 0 || room >= places.elems), "{} elements of {} rows", y.elems,
           places.elems);
}

Combination combination(const Buffer& out, const Buffer& y, const Buffer& weights, const Buffer& places,
                        std::int64_t width) {
  checks::same_dtype(out, y);
  const std::int64_t tokens = width == 0 ? 0 : out.elems / width, rows = places.elems;
  ZS_CHECK(out.elems == tokens * width && (tokens == 0 ? rows == 0 : rows % tokens == 0),
           "{} elements of {} rows for {}", y.elems, rows, out.elems);
  check_places(places, y, width);
  return {tokens, tokens == 0 ? 0 : rows / tokens, width, weights.empty() ? nullptr : sized_floats_of(weights, rows),
          ints_of(places, rows)};
}

template <class T>
void combine_token(T* out, const T* y, float* sums, const Combination& of, std::int64_t token) {
  bool is_first = true;
  for (std::int64_t s = 0; s < of.chosen; ++s) {
    const std::int64_t assignment = token * of.chosen + s;
    if (of.places[assignment] < 0) continue;
    const T* const row = y + of.places[assignment] * of.width;
    const float weight = of.weight(assignment);
    if (std::exchange(is_first, false)) {
      for (std::int64_t c = 0; c < of.width; ++c) sums[c] = weight * static_cast<float>(row[c]);
    } else {
      for (std::int64_t c = 0; c < of.width; ++c) sums[c] += weight * static_cast<float>(row[c]);
    }
  }
  if (is_first) std::fill_n(sums, of.width, 0.0f);
  for (std::int64_t c = 0; c < of.width; ++c) out[token * of.width + c] = static_cast<T>(sums[c]);
}

template <class T>
void combine(ExecContext& ctx, T* out, const T* y, const Combination& of) {
#pragma omp parallel num_threads(ctx.threads()) if (of.tokens * of.width > kWorthTeam)
  {
    std::vector<float> sums(static_cast<std::size_t>(of.width));
#pragma omp for
    for (std::int64_t t = 0; t < of.tokens; ++t) combine_token(out, y, sums.data(), of, t);
  }
}

void combine_rows(ExecContext& ctx, Buffer out, Buffer y, Buffer weights, Buffer places, std::int64_t width) {
  const Combination of = combination(out, y, weights, places, width);
  if (out.empty()) return;
  if (data_of(y).is_bf16) return combine(ctx, out.as<BFloat16>(), y.as<BFloat16>(), of);
  combine(ctx, out.as<float>(), y.as<float>(), of);
}

template <class T>
void spread(ExecContext& ctx, T* dy, float* dweights, const T* dout, const T* y, const Combination& of) {
#pragma omp parallel for num_threads(ctx.threads()) if (of.tokens * of.width > kWorthTeam)
  for (std::int64_t i = 0; i < of.tokens * of.chosen; ++i) {
    if (of.places[i] < 0) {
      dweights[i] = 0;
      continue;
    }
    const T *const grad = dout + i / of.chosen * of.width, *const row = y + of.places[i] * of.width;
    T* const out = dy + of.places[i] * of.width;
    const float weight = of.weight(i);
    double sum = 0;
    for (std::int64_t c = 0; c < of.width; ++c) sum += static_cast<float>(grad[c]) * static_cast<float>(row[c]);
    for (std::int64_t c = 0; c < of.width; ++c) out[c] = static_cast<T>(weight * static_cast<float>(grad[c]));
    dweights[i] = static_cast<float>(sum);
  }
}

void combine_backward(ExecContext& ctx, Buffer dy, Buffer dweights, Buffer dout, Buffer y, Buffer weights,
                      Buffer places, std::int64_t width) {
  const Combination of = combination(dout, y, weights, places, width);
  checks::alike(dy, y, y);
  if (dout.empty()) return;
  float* const dw = sized_floats_of(dweights, places.elems);
  if (data_of(y).is_bf16)
    return spread(ctx, dy.as<BFloat16>(), dw, dout.as<BFloat16>(), static_cast<const BFloat16*>(y.data), of);
  spread(ctx, dy.as<float>(), dw, dout.as<float>(), static_cast<const float*>(y.data), of);
}

}  // namespace

void fill_experts(KernelTable& table) {
  table.experts.route = route;
  table.experts.route_backward = route_backward;
  table.experts.sort_rows = sort_rows;
  table.experts.gather_rows = gather_rows;
  table.experts.combine_rows = combine_rows;
  table.experts.combine_backward = combine_backward;
}

}  // namespace zs::cpu
