#include "tests/kernels/testing.h"
#include "tests/skip.h"

namespace zs::test::attention_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

const std::vector<AttentionDims> kShapes = {{1, 1, 1, 1},      {2, 3, 2, 3},    {1, 17, 3, 8},    {2, 64, 1, 16},
                                            {1, 65, 2, 32},    {1, 100, 2, 48}, {1, 130, 2, 64},  {2, 129, 1, 128},
                                            {3, 40, 1, 100},   {1, 200, 4, 80}, {2, 33, 6, 8, 2}, {1, 70, 4, 64, 1},
                                            {2, 20, 4, 128, 2}};

/// Windows below and above the kernels' tiles, at and off their edges; the last one is all there is.
const std::vector<AttentionDims> kWindows = {{2, 3, 2, 3, 0, 1},      {1, 70, 2, 16, 0, 5},    {1, 200, 2, 64, 0, 16},
                                             {2, 150, 1, 128, 0, 33}, {1, 300, 2, 64, 1, 129}, {1, 140, 1, 20, 0, 64},
                                             {1, 129, 4, 8, 2, 65},   {1, 200, 1, 128, 0, 1},  {1, 640, 1, 64, 0, 100},
                                             {1, 90, 1, 100, 0, 1000}};

/// Probabilities that are rounded to bf16 (rounds_probabilities) are off by up to kNarrow of each.
constexpr double kNarrow = 0x1.0p-8, kExponential = 6e-6;  // the latter: of an exponential that will be rounded

struct Reference {
  std::vector<double> out, lse;
};

/// The definition: full scores of every row.
Reference attention(const std::vector<double>& qkv, const AttentionDims& d) {
  const std::int64_t kv_heads = kv_heads_of(d), group = d.heads / kv_heads;
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t which, std::int64_t h, std::int64_t i) {
    const std::int64_t head = which == 0 ? h : d.heads + (which - 1) * kv_heads + h / group;
    return qkv[static_cast<std::size_t>((b * d.time + t) * qkv_width_of(d) + head * d.head_dim + i)];
  };
  Reference r;
  r.out.resize(static_cast<std::size_t>(d.batch * d.time * d.heads * d.head_dim));
  r.lse.resize(static_cast<std::size_t>(d.batch * d.heads * d.time));
  for (std::int64_t b = 0; b < d.batch; ++b)
    for (std::int64_t h = 0; h < d.heads; ++h)
      for (std::int64_t t = 0; t < d.time; ++t) {
        const std::int64_t first = std::max<std::int64_t>(0, t + 1 - window_of(d));
        std::vector<double> p;
        double sum = 0;
        for (std::int64_t s = first; s <= t; ++s) {
          double score = 0;
          for (std::int64_t i = 0; i < d.head_dim; ++i) score += at(b, t, 0, h, i) * at(b, s, 1, h, i);
          p.push_back(std::exp(score / std::sqrt(static_cast<double>(d.head_dim))));
          sum += p.back();
        }
        r.lse[static_cast<std::size_t>((b * d.heads + h) * d.time + t)] = std::log(sum);
        for (std::int64_t i = 0; i < d.head_dim; ++i) {
          double value = 0;
          for (std::int64_t s = first; s <= t; ++s)
            value += p[static_cast<std::size_t>(s - first)] / sum * at(b, s, 2, h, i);
          r.out[static_cast<std::size_t>(((b * d.time + t) * d.heads + h) * d.head_dim + i)] = value;
        }
      }
  return r;
}

struct Forward {
  Values out, lse;
};
Forward forward(Values& qkv, const AttentionDims& d) {
  const std::int64_t elems = d.batch * d.time * d.heads * d.head_dim;
  const auto out = run({Values::poison(qkv.dtype(), elems), Values::poison(DType::f32, d.batch * d.heads * d.time)},
                       [&](ExecContext& ctx, std::vector<Values>& o) {
                         k().attention_forward(ctx, o[0].buffer(), o[1].buffer(), qkv.buffer(), d);
                       });
  return {out[0], out[1]};
}

}  // namespace

TEST_CASE("attention is causal softmax attention at every shape", "[attention]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d = GENERATE(from_range(kShapes), from_range(kWindows));
  CAPTURE(d.time, d.head_dim, d.window);
  Values qkv = Values::random(dtype, d.batch * d.time * qkv_width_of(d), 1);
  const Forward result = forward(qkv, d);
  const Reference expected = attention(qkv.list(), d);
  const bool is_rounded = rounds_probabilities(dtype, d.head_dim);
  double largest = 0;
  for (const double x : qkv.list()) largest = std::max(largest, std::abs(x));
  // averages of values of order 1, weights accurate to about 1e-6
  require_close(result.out, expected.out, 3e-6 + (is_rounded ? (kNarrow + 2 * kExponential) * largest : 0));
  require_close(result.lse, expected.lse, 3e-6 + (is_rounded ? kExponential : 0));
}

TEST_CASE("attention stays exact when scores are large", "[attention]") {
  const AttentionDims d{1, 150, 1, 16};
  Values qkv = Values::random(DType::f32, 3 * d.time * d.head_dim, 1, 4.0);
  const Forward result = forward(qkv, d);
  require_close(result.out, attention(qkv.list(), d).out,
                5e-4);  // scores near 60 carry absolute errors of 4e-6 times |v| and 100 terms
}

TEST_CASE("attention over a long sequence rescales what it has gathered", "[attention][long]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d{1, 1100, 1, 8};
  Values qkv = Values::random(dtype, 3 * d.time * d.head_dim, 1);
  for (std::int64_t t = 0; t < d.time; ++t)
    for (std::int64_t i = 0; i < 8; ++i)
      qkv.set(t * 24 + 8 + i, qkv[t * 24 + 8 + i] * static_cast<double>(t) / 256);  // later keys weigh more
  const Forward result = forward(qkv, d);
  const Reference expected = attention(qkv.list(), d);
  const double large = 1e-4;  // scores near 40 carry absolute errors of 3e-6
  require_close(result.out, expected.out, large + (rounds_probabilities(dtype, d.head_dim) ? 4 * kNarrow : 0));
  require_close(result.lse, expected.lse, large);
}

TEST_CASE("attention over equal keys averages the values seen so far", "[attention]") {
  const AttentionDims d{1, 70, 1, 4};
  Values qkv(DType::f32, 3 * d.time * d.head_dim);
  for (std::int64_t t = 0; t < d.time; ++t)
    for (std::int64_t i = 0; i < 4; ++i) qkv.set(t * 12 + 8 + i, static_cast<double>(t));
  const Forward result = forward(qkv, d);
  for (std::int64_t t = 0; t < d.time; ++t) {
    REQUIRE(result.out[t * 4] == Approx(static_cast<double>(t) / 2).epsilon(1e-6));
    REQUIRE(result.lse[t] == Approx(std::log(static_cast<double>(t + 1))).epsilon(1e-6));
  }
}

TEST_CASE("attention's gradients agree with central differences", "[attention]") {
  const AttentionDims d = GENERATE(
      AttentionDims{1, 1, 1, 1}, AttentionDims{2, 3, 2, 3}, AttentionDims{1, 17, 2, 8}, AttentionDims{1, 70, 1, 16},
      AttentionDims{1, 130, 2, 64}, AttentionDims{2, 65, 1, 100}, AttentionDims{2, 5, 6, 3, 2},
      AttentionDims{1, 70, 4, 16, 2}, AttentionDims{1, 66, 3, 64, 1}, AttentionDims{2, 5, 2, 3, 0, 2},
      AttentionDims{1, 140, 2, 16, 1, 20}, AttentionDims{1, 130, 1, 64, 0, 65});
  if (is_thinned_out()) return;
  CAPTURE(d.time, d.head_dim, d.window);
  const std::int64_t elems = d.batch * d.time * d.heads * d.head_dim, qkv_elems = d.batch * d.time * qkv_width_of(d);
  Values qkv = Values::random(DType::f32, qkv_elems, 1), dout = Values::random(DType::f32, elems, 2);
  Forward f = forward(qkv, d);
  const auto out = run({Values::poison(DType::f32, qkv_elems)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().attention_backward(ctx, o[0].buffer(), dout.buffer(), f.out.buffer(), qkv.buffer(), f.lse.buffer(), d);
  });
  const std::vector<double> x = qkv.list(), weights = dout.list();
  const std::size_t step = std::max<std::size_t>(1, x.size() / 60) | 1;  // odd: reaches q, k, v and every column
  for (std::size_t i = 0; i < x.size(); i += step) {
    const double expected =
        central_difference(x, i, [&](const std::vector<double>& v) { return dot(attention(v, d).out, weights); });
    INFO("element " << i << " of " << x.size());
    REQUIRE(out[0][static_cast<std::int64_t>(i)] == Approx(expected).margin(1e-5).epsilon(1e-5));
  }
}

namespace {

/// One head's gradients and, of each, the sum of its terms' magnitudes. Dao et al. 2022, algorithm 4, from the forward
/// pass's own results.
struct Gradients {
  std::vector<double> value, magnitude;
};
Gradients attention_gradients(const Values& qkv, const Values& dout, const Forward& f, const AttentionDims& d) {
  const std::int64_t time = d.time, width = d.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  const auto at = [&](std::int64_t t, std::int64_t which, std::int64_t i) { return (t * 3 + which) * width + i; };
  Gradients g{std::vector<double>(static_cast<std::size_t>(3 * time * width)), {}};
  g.magnitude = g.value;
  const auto add = [&](std::int64_t i, double term) {
    g.value[static_cast<std::size_t>(i)] += term;
    g.magnitude[static_cast<std::size_t>(i)] += std::abs(term);
  };
  for (std::int64_t t = 0; t < time; ++t)
    for (std::int64_t s = std::max<std::int64_t>(0, t + 1 - window_of(d)); s <= t; ++s) {
      double score = 0, dp = 0;
      for (std::int64_t i = 0; i < width; ++i) {
        score += scale * qkv[at(t, 0, i)] * qkv[at(s, 1, i)];
        dp += dout[t * width + i] * (qkv[at(s, 2, i)] - f.out[t * width + i]);
      }
      const double p = std::exp(score - f.lse[t]), ds = p * dp;
      for (std::int64_t i = 0; i < width; ++i) {
        add(at(t, 0, i), scale * ds * qkv[at(s, 1, i)]);
        add(at(s, 1, i), scale * ds * qkv[at(t, 0, i)]);
        add(at(s, 2, i), p * dout[t * width + i]);
      }
    }
  return g;
}

}  // namespace

TEST_CASE("attention's bf16 gradients are off by the rounding of their terms at most", "[attention]") {
  const AttentionDims d = GENERATE(
      AttentionDims{1, 1, 1, 1}, AttentionDims{1, 63, 1, 20}, AttentionDims{1, 130, 1, 64},
      AttentionDims{1, 97, 1, 100}, AttentionDims{1, 1, 1, 128}, AttentionDims{1, 65, 1, 128},
      AttentionDims{1, 129, 1, 128}, AttentionDims{1, 300, 1, 64}, AttentionDims{1, 300, 1, 64, 0, 70},
      AttentionDims{1, 150, 1, 128, 0, 16}, AttentionDims{1, 200, 1, 64, 0, 1}, AttentionDims{1, 140, 1, 20, 0, 64});
  if (is_thinned_out()) return;
  CAPTURE(d.time, d.head_dim, d.window);
  Values qkv = Values::random(DType::bf16, 3 * d.time * d.head_dim, 1),
         dout = Values::random(DType::bf16, d.time * d.head_dim, 2);
  Forward f = forward(qkv, d);
  const Gradients expected = attention_gradients(qkv, dout, f, d);
  const auto out =
      run({Values::poison(DType::bf16, 3 * d.time * d.head_dim)}, [&](ExecContext& ctx, std::vector<Values>& o) {
        k().attention_backward(ctx, o[0].buffer(), dout.buffer(), f.out.buffer(), qkv.buffer(), f.lse.buffer(), d);
      });
  // Sums in f32 of up to 130 terms, and differences dout v - dout out of sums of up to 100.
  const double term = 1e-4 + (rounds_probabilities(DType::bf16, d.head_dim) ? kNarrow : 0);
  for (std::size_t i = 0; i < expected.value.size(); ++i) {
    const double want = expected.value[i], got = out[0][static_cast<std::int64_t>(i)];
    INFO("element " << i << ": got " << got << ", expected " << want << ", terms of " << expected.magnitude[i]);
    REQUIRE(std::abs(got - want) <= term * expected.magnitude[i] + rounding(DType::bf16) * std::abs(want) + 1e-6);
  }
}

TEST_CASE("attention's bf16 gradients are the f32 ones of the same values, rounded", "[attention]") {
  const AttentionDims d =
      GENERATE(AttentionDims{2, 17, 2, 8}, AttentionDims{1, 130, 2, 64}, AttentionDims{1, 70, 1, 80});
  if (rounds_probabilities(DType::bf16, d.head_dim)) return skip("probabilities are rounded, too");
  const std::int64_t elems = d.batch * d.time * d.heads * d.head_dim;
  Values qkv = Values::random(DType::bf16, 3 * elems, 1), dout = Values::random(DType::bf16, elems, 2);
  Forward f = forward(qkv, d);
  Values wide_qkv = Values::of(DType::f32, qkv.list()), wide_dout = Values::of(DType::f32, dout.list());
  Values wide_out = Values::of(DType::f32, f.out.list());
  const auto out =
      run({Values::poison(DType::bf16, 3 * elems), Values::poison(DType::f32, 3 * elems)},
          [&](ExecContext& ctx, std::vector<Values>& o) {
            k().attention_backward(ctx, o[0].buffer(), dout.buffer(), f.out.buffer(), qkv.buffer(), f.lse.buffer(), d);
            k().attention_backward(ctx, o[1].buffer(), wide_dout.buffer(), wide_out.buffer(), wide_qkv.buffer(),
                                   f.lse.buffer(), d);
          });
  for (std::int64_t i = 0; i < 3 * elems; ++i)
    REQUIRE(out[0].at<BFloat16>(i).bits == BFloat16(out[1].at<float>(i)).bits);
}

namespace {

/// One pair of a batch and a head out of (batch, time, parts, heads, head_dim).
Values of_pair(const Values& all, const AttentionDims& d, std::int64_t batch, std::int64_t head, std::int64_t parts) {
  Values one(all.dtype(), d.time * parts * d.head_dim);
  for (std::int64_t row = 0; row < d.time * parts; ++row)
    for (std::int64_t i = 0; i < d.head_dim; ++i)
      one.set(row * d.head_dim + i, all[((batch * d.time * parts + row) * d.heads + head) * d.head_dim + i]);
  return one;
}

/// Once: out, lse, dqkv.
std::vector<Values> both_ways(Values& qkv, Values& dout, const AttentionDims& d) {
  ExecContext ctx = make_context();
  Values out = Values::poison(qkv.dtype(), dout.elems()), dqkv = Values::poison(qkv.dtype(), qkv.elems());
  Values lse = Values::poison(DType::f32, d.batch * d.heads * d.time);
  k().attention_forward(ctx, out.buffer(), lse.buffer(), qkv.buffer(), d);
  k().attention_backward(ctx, dqkv.buffer(), dout.buffer(), out.buffer(), qkv.buffer(), lse.buffer(), d);
  return {out, lse, dqkv};
}

}  // namespace

TEST_CASE("where attention saturates, queries and keys get no gradient, and values what their queries have",
          "[attention]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d =
      GENERATE(AttentionDims{1, 70, 1, 16}, AttentionDims{1, 40, 2, 64}, AttentionDims{1, 33, 4, 24, 2});
  const std::int64_t width = qkv_width_of(d), elems = d.time * d.heads * d.head_dim, kv_heads = kv_heads_of(d),
                     group = d.heads / kv_heads;
  // Key t is t in every element, so that every query, some thousands in each, sees its own key alone.
  Values qkv = Values::random(dtype, d.time * width, 1), dout = Values::random(dtype, elems, 2);
  for (std::int64_t t = 0; t < d.time; ++t)
    for (std::int64_t i = 0; i < (d.heads + kv_heads) * d.head_dim; ++i)
      qkv.set(t * width + i, i < d.heads * d.head_dim ? static_cast<double>(32 + i % 8) : static_cast<double>(t));
  Forward f = forward(qkv, d);
  const auto out = run({Values::poison(dtype, d.time * width)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().attention_backward(ctx, o[0].buffer(), dout.buffer(), f.out.buffer(), qkv.buffer(), f.lse.buffer(), d);
  });
  for (std::int64_t t = 0; t < d.time; ++t) {
    for (std::int64_t i = 0; i < (d.heads + kv_heads) * d.head_dim; ++i) {
      INFO("token " << t << ", element " << i);
      REQUIRE(out[0][t * width + i] == 0);
    }
    for (std::int64_t h = 0; h < kv_heads; ++h)
      for (std::int64_t i = 0; i < d.head_dim; ++i) {
        double expected = 0;
        for (std::int64_t q = h * group; q < (h + 1) * group; ++q) expected += dout[(t * d.heads + q) * d.head_dim + i];
        REQUIRE(out[0][t * width + (d.heads + kv_heads + h) * d.head_dim + i] ==
                Approx(expected).epsilon(0.01).margin(0.01));
      }
  }
}

TEST_CASE("every head of every batch is what it is alone", "[attention][long]") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t time = GENERATE(1, 17, 63, 65, 129, 300), head_dim = GENERATE(64, 128), heads = GENERATE(1, 3);
  if (time * heads > 300 || (dtype == DType::f32 && time * head_dim > 64 * 65)) return;
  const AttentionDims d{2, time, heads, head_dim}, alone{1, time, 1, head_dim};
  const std::int64_t elems = d.batch * d.time * d.heads * d.head_dim;
  Values qkv = Values::random(dtype, 3 * elems, 1), dout = Values::random(dtype, elems, 2);
  const std::vector<Values> all = both_ways(qkv, dout, d);
  for (std::int64_t batch = 0; batch < d.batch; ++batch)
    for (std::int64_t head = 0; head < heads; ++head) {
      Values own_qkv = of_pair(qkv, d, batch, head, 3), own_dout = of_pair(dout, d, batch, head, 1);
      const std::vector<Values> own = both_ways(own_qkv, own_dout, alone);
      CHECK(of_pair(all[0], d, batch, head, 1).same_bytes(own[0]));
      for (std::int64_t t = 0; t < time; ++t) REQUIRE(all[1][(batch * heads + head) * time + t] == own[1][t]);
      CHECK(of_pair(all[2], d, batch, head, 3).same_bytes(own[2]));
    }
}

namespace {

/// qkv with the keys and values of each head once for every query head that shares them.
Values with_own_keys(const Values& qkv, const AttentionDims& d) {
  const std::int64_t kv_heads = kv_heads_of(d), group = d.heads / kv_heads;
  Values own(qkv.dtype(), 3 * d.batch * d.time * d.heads * d.head_dim);
  for (std::int64_t token = 0; token < d.batch * d.time; ++token)
    for (std::int64_t h = 0; h < 3 * d.heads; ++h)
      for (std::int64_t i = 0; i < d.head_dim; ++i) {
        const std::int64_t head = h < d.heads ? h : d.heads + (h - d.heads) / d.heads * kv_heads + h % d.heads / group;
        own.set((token * 3 * d.heads + h) * d.head_dim + i, qkv[token * qkv_width_of(d) + head * d.head_dim + i]);
      }
  return own;
}

}  // namespace

TEST_CASE("query heads that share keys are what they are with keys of their own, and dk and dv are the sums of theirs",
          "[attention]") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const AttentionDims d = GENERATE(AttentionDims{2, 17, 4, 64, 2}, AttentionDims{1, 150, 4, 64, 1},
                                   AttentionDims{2, 70, 6, 128, 3}, AttentionDims{1, 65, 3, 20, 1});
  if ((dtype == DType::f32 && d.head_dim > 64) || is_thinned_out()) return;
  const AttentionDims alone{d.batch, d.time, d.heads, d.head_dim};
  Values qkv = Values::random(dtype, d.batch * d.time * qkv_width_of(d), 1);
  Values dout = Values::random(dtype, d.batch * d.time * d.heads * d.head_dim, 2), own_qkv = with_own_keys(qkv, d);
  const std::vector<Values> shared = both_ways(qkv, dout, d), own = both_ways(own_qkv, dout, alone);
  CHECK(shared[0].same_bytes(own[0]));
  CHECK(shared[1].same_bytes(own[1]));
  const std::int64_t group = d.heads / d.kv_heads;
  for (std::int64_t token = 0; token < d.batch * d.time; ++token)
    for (std::int64_t h = 0; h < d.heads + 2 * d.kv_heads; ++h)
      for (std::int64_t i = 0; i < d.head_dim; ++i) {
        double sum = 0, magnitude = 0;
        const bool is_query = h < d.heads;
        const std::int64_t key_head = h - d.heads, part = is_query ? 0 : d.heads + key_head / d.kv_heads * d.heads;
        const std::int64_t first = is_query ? h : part + key_head % d.kv_heads * group;
        for (std::int64_t g = 0; g < (is_query ? 1 : group); ++g) {
          const double term = own[2][(token * 3 * d.heads + first + g) * d.head_dim + i];
          sum += term;
          magnitude += std::abs(term);
        }
        const double got = shared[2][token * qkv_width_of(d) + h * d.head_dim + i];
        INFO("token " << token << ", head " << h << ", element " << i << ": got " << got << ", expected " << sum);
        // The terms were rounded one by one, and f32 sums of some hundred in another order.
        REQUIRE(std::abs(got - sum) <= (is_query ? 0 : rounding(dtype) * (magnitude + std::abs(sum)) + 1e-5));
      }
}

TEST_CASE("attention refuses key and value heads that do not divide the query heads", "[attention]") {
  ExecContext ctx = make_context();
  const AttentionDims d{1, 1, 3, 1, 2};
  Values qkv(DType::f32, qkv_width_of(d)), out(DType::f32, 3), lse(DType::f32, 3);
  REQUIRE_THROWS_WITH(k().attention_forward(ctx, out.buffer(), lse.buffer(), qkv.buffer(), d),
                      Catch::Contains("3 heads share 2 key and value heads"));
}

TEST_CASE("attention refuses buffers that do not fit its dims", "[attention]") {
  ExecContext ctx = make_context();
  Values qkv(DType::f32, 3 * 8), out(DType::f32, 8), lse(DType::f32, 3);
  REQUIRE_THROWS_AS(k().attention_forward(ctx, out.buffer(), lse.buffer(), qkv.buffer(), {1, 4, 1, 2}), Error);
}

TEST_CASE("attention with a cache is that of the last tokens of the whole sequence", "[attention]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d = GENERATE(AttentionDims{1, 5, 2, 3}, AttentionDims{1, 70, 4, 64, 1},
                                   AttentionDims{1, 130, 6, 33, 2}, AttentionDims{1, 300, 2, 8, 1, 17});
  const std::int64_t first = GENERATE_COPY(0, 1, d.time / 2, d.time - 1), tokens = d.time - first;
  const std::int64_t width = qkv_width_of(d), row = 2 * kv_heads_of(d) * d.head_dim, capacity = d.time + 3;
  Values qkv = Values::random(dtype, d.time * width, 1), cache = Values::poison(dtype, capacity * row);
  for (std::int64_t t = 0; t < d.time; ++t)
    for (std::int64_t i = 0; i < row; ++i) cache.set(t * row + i, qkv[t * width + width - row + i]);
  AttentionDims last = d;
  last.time = tokens;
  const Buffer queries = qkv.buffer().slice(first * width, tokens * width);
  const auto found =
      run({Values::poison(dtype, tokens * d.heads * d.head_dim),
           Values::poison(DType::f32, tokens * d.heads * (d.time + d.head_dim))},
          [&](ExecContext& ctx, std::vector<Values>& o) {
            k().attention_cached(ctx, o[0].buffer(), o[1].buffer(), queries, cache.buffer(), last, first);
          });
  const std::vector<double> all = attention(qkv.list(), d).out;
  const std::vector<double> expected(all.begin() + first * d.heads * d.head_dim, all.end());
  require_close(found[0], expected, 3e-6);  // averages of values of order 1, weights accurate to about 1e-6
}

}  // namespace zs::test::attention_test
