// Attention whose rows have a logit more, against the definition.
#include "tests/kernels/testing.h"

namespace zs::test::attention_sinks_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

struct Reference {
  std::vector<double> out, lse;
};

/// Full scores of every row, and the sink beside them.
Reference attention(const Values& qkv, const Values& sinks, const AttentionDims& d) {
  const std::int64_t group = d.heads / kv_heads_of(d), width = qkv_width_of(d);
  Reference r;
  r.out.resize(static_cast<std::size_t>(d.batch * d.time * d.heads * d.head_dim));
  r.lse.resize(static_cast<std::size_t>(d.batch * d.heads * d.time));
  for (std::int64_t b = 0; b < d.batch; ++b)
    for (std::int64_t h = 0; h < d.heads; ++h)
      for (std::int64_t t = 0; t < d.time; ++t) {
        const std::int64_t row = b * d.time, key = (d.heads + h / group) * d.head_dim,
                           value = key + kv_heads_of(d) * d.head_dim;
        std::vector<double> scores;
        double largest = sinks[h];
        const std::int64_t first = std::max<std::int64_t>(0, t + 1 - window_of(d));
        for (std::int64_t s = first; s <= t; ++s) {
          double score = 0;
          for (std::int64_t i = 0; i < d.head_dim; ++i)
            score += qkv[(row + t) * width + h * d.head_dim + i] * qkv[(row + s) * width + key + i];
          scores.push_back(score / std::sqrt(static_cast<double>(d.head_dim)));
          largest = std::max(largest, scores.back());
        }
        double sum = std::exp(sinks[h] - largest);
        for (const double score : scores) sum += std::exp(score - largest);
        r.lse[static_cast<std::size_t>((b * d.heads + h) * d.time + t)] = largest + std::log(sum);
        for (std::int64_t s = first; s <= t; ++s)
          for (std::int64_t i = 0; i < d.head_dim; ++i)
            r.out[static_cast<std::size_t>(((row + t) * d.heads + h) * d.head_dim + i)] +=
                std::exp(scores[static_cast<std::size_t>(s - first)] - largest) / sum *
                qkv[(row + s) * width + value + i];
      }
  return r;
}

struct Forward {
  Values out, lse;
};
Forward forward(Values& qkv, Values& sinks, const AttentionDims& d) {
  const auto out = run({Values::poison(qkv.dtype(), d.batch * d.time * d.heads * d.head_dim),
                        Values::poison(DType::f32, d.batch * d.heads * d.time)},
                       [&](ExecContext& ctx, std::vector<Values>& o) {
                         k().sinks.forward(ctx, o[0].buffer(), o[1].buffer(), qkv.buffer(), sinks.buffer(), d);
                       });
  return {out[0], out[1]};
}

/// Of each head another one, times `factor`: below all scores, among them, above all.
Values some_sinks(DType dtype, std::int64_t heads, double factor) {
  Values sinks(dtype, heads);
  for (std::int64_t h = 0; h < heads; ++h) sinks.set(h, factor * (h % 2 == 0 ? 1 : -1) * static_cast<double>(h + 1));
  return sinks;
}

}  // namespace

TEST_CASE("attention with sinks is a softmax with a logit more, at every shape", "[attention][cpu]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16), of_sinks = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d = GENERATE(AttentionDims{1, 1, 1, 1}, AttentionDims{2, 33, 6, 8, 2},
                                   AttentionDims{1, 130, 2, 64, 1, 70}, AttentionDims{1, 70, 4, 33, 0, 1});
  const double factor = GENERATE(0.5, 40.0, 1e30);
  CAPTURE(d.time, d.head_dim, d.window, factor);
  Values qkv = Values::random(dtype, d.batch * d.time * qkv_width_of(d), 1),
         sinks = some_sinks(of_sinks, d.heads, factor);
  const Forward result = forward(qkv, sinks, d);
  const Reference expected = attention(qkv, sinks, d);
  // As attention without: averages of values of order 1, of bf16 by probabilities that may be rounded.
  require_close(result.out, expected.out, dtype == DType::bf16 ? 0.02 : 3e-6);
  require_close(result.lse, expected.lse, 1e-5);
}

TEST_CASE("attention with sinks that are far below all scores is attention without, bit for bit", "[attention][cpu]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d{2, 70, 4, 16, 2, 20};
  Values qkv = Values::random(dtype, d.batch * d.time * qkv_width_of(d), 1), sinks(DType::f32, d.heads);
  for (std::int64_t h = 0; h < d.heads; ++h) sinks.set(h, h == 0 ? -std::numeric_limits<double>::infinity() : -1e30);
  const Forward with = forward(qkv, sinks, d);
  const auto without = run({with.out, with.lse}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().attention_forward(ctx, o[0].buffer(), o[1].buffer(), qkv.buffer(), d);
  });
  CHECK(with.out.same_bytes(without[0]));
  CHECK(with.lse.same_bytes(without[1]));
}

TEST_CASE("the gradient of sinks has the same bits at every number of threads, and is added to what is there",
          "[attention][cpu]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16), of_gradient = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d{2, 70, 6, 16, 2};
  Values qkv = Values::random(dtype, d.batch * d.time * qkv_width_of(d), 1), sinks = some_sinks(dtype, d.heads, 0.3);
  Forward made = forward(qkv, sinks, d);
  Values dout = Values::random(dtype, made.out.elems(), 2);
  const Values before = Values::random(of_gradient, d.heads, 3);
  const float beta = GENERATE(0.0f, 1.0f);
  const auto found =
      run({beta == 0 ? Values::poison(of_gradient, d.heads) : before}, [&](ExecContext& ctx, std::vector<Values>& o) {
        k().sinks.backward(ctx, o[0].buffer(), dout.buffer(), made.out.buffer(), made.lse.buffer(), sinks.buffer(), d,
                           beta);
      });
  std::vector<double> expected(static_cast<std::size_t>(d.heads));
  for (std::int64_t h = 0; h < d.heads; ++h) {
    double& sum = expected[static_cast<std::size_t>(h)] = beta == 0 ? 0 : before[h];
    for (std::int64_t t = 0; t < d.batch * d.time; ++t)
      for (std::int64_t i = 0; i < d.head_dim; ++i) {
        const std::int64_t at = (t * d.heads + h) * d.head_dim + i;
        sum -=
            std::exp(sinks[h] - made.lse[(t / d.time * d.heads + h) * d.time + t % d.time]) * dout[at] * made.out[at];
      }
  }
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  require_close(found[0], expected, largest * (of_gradient == DType::bf16 ? rounding(DType::bf16) : 1e-5));
}

TEST_CASE("attention with sinks and a cache is that of the last tokens of the whole sequence", "[attention][cpu]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d = GENERATE(AttentionDims{1, 5, 2, 3}, AttentionDims{1, 70, 4, 64, 1, 17});
  const std::int64_t first = GENERATE_COPY(0, d.time / 2, d.time - 1), tokens = d.time - first;
  const std::int64_t width = qkv_width_of(d), row = 2 * kv_heads_of(d) * d.head_dim;
  Values qkv = Values::random(dtype, d.time * width, 1), cache = Values::poison(dtype, d.time * row),
         sinks = some_sinks(dtype, d.heads, 0.4);
  for (std::int64_t t = 0; t < d.time; ++t)
    for (std::int64_t i = 0; i < row; ++i) cache.set(t * row + i, qkv[t * width + width - row + i]);
  AttentionDims last = d;
  last.time = tokens;
  const Buffer queries = qkv.buffer().slice(first * width, tokens * width);
  const auto found =
      run({Values::poison(dtype, tokens * d.heads * d.head_dim),
           Values::poison(DType::f32, tokens * d.heads * (d.time + d.head_dim))},
          [&](ExecContext& ctx, std::vector<Values>& o) {
            k().sinks.cached(ctx, o[0].buffer(), o[1].buffer(), queries, cache.buffer(), sinks.buffer(), last, first);
          });
  const std::vector<double> all = attention(qkv, sinks, d).out;
  require_close(found[0], std::vector<double>(all.begin() + first * d.heads * d.head_dim, all.end()), 3e-6);
}

TEST_CASE("attention with sinks refuses another number of them", "[attention][cpu]") {
  ExecContext ctx = make_context();
  const AttentionDims d{1, 2, 3, 4};
  Values qkv(DType::f32, 2 * qkv_width_of(d)), out(DType::f32, 24), lse(DType::f32, 6), sinks(DType::f32, 2);
  REQUIRE_THROWS_WITH(k().sinks.forward(ctx, out.buffer(), lse.buffer(), qkv.buffer(), sinks.buffer(), d),
                      Catch::Contains("2 sinks for 3 heads"));
}

}  // namespace zs::test::attention_sinks_test
