#include "tests/kernels/testing.h"

namespace zs::test::rotary_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

/// By wavelengths, as Llama 3.1's own code has it; by pairs, as YaRN's paper has it.
double scaled(double frequency, double pair, const RotaryScaling& scaling) {
  if (scaling.last > 0) {
    const double kept = 1 - std::clamp((pair - scaling.first) / (scaling.last - scaling.first), 0.0, 1.0);
    return kept * frequency + (1 - kept) * frequency / scaling.factor;
  }
  if (scaling.context == 0) return frequency / scaling.factor;
  const double wavelength = 2 * std::acos(-1.0) / frequency, context = static_cast<double>(scaling.context);
  if (wavelength < context / scaling.high) return frequency;
  if (wavelength > context / scaling.low) return frequency / scaling.factor;
  const double smooth = (context / wavelength - scaling.low) / (scaling.high - scaling.low);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

/// Turns by complex numbers: pair i of a head, elements i and i + head_dim / 2, times e^(i angle).
std::vector<double> turned(const Values& qkv, const AttentionDims& d, const RotaryOptions& options) {
  const std::int64_t heads = d.heads + kv_heads_of(d), half = d.head_dim / 2, width = qkv_width_of(d);
  std::vector<double> out = qkv.list();
  for (std::int64_t token = 0; token < d.batch * d.time; ++token)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t i = 0; i < half; ++i) {
        const double pair = static_cast<double>(i), amplitude = static_cast<double>(options.scaling.amplitude);
        const double frequency =
            scaled(std::pow(options.base, -2.0 * pair / static_cast<double>(d.head_dim)), pair, options.scaling);
        const double angle = static_cast<double>(token % d.time) * frequency * (options.is_inverse ? -1 : 1);
        const std::int64_t at = token * width + head * d.head_dim + i;
        const double x = amplitude * qkv[at], y = amplitude * qkv[at + half];
        out[static_cast<std::size_t>(at)] = x * std::cos(angle) - y * std::sin(angle);
        out[static_cast<std::size_t>(at + half)] = y * std::cos(angle) + x * std::sin(angle);
      }
  return out;
}

Values run_rotary(Values& qkv, const AttentionDims& d, const RotaryOptions& options) {
  return run({Values::poison(qkv.dtype(), qkv.elems())}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().rotary(ctx, o[0].buffer(), qkv.buffer(), d, options);
  })[0];
}

const std::vector<AttentionDims> kShapes = {{1, 1, 1, 2},      {2, 3, 2, 6},      {3, 17, 3, 8},
                                            {2, 40, 4, 64, 2}, {1, 5, 6, 128, 1}, {2, 9, 2, 34, 1}};

}  // namespace

TEST_CASE("rotary positions turn queries and keys by their angles and leave values as they are", "[rotary]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d = GENERATE(from_range(kShapes));
  const RotaryOptions options{.base = GENERATE(10000.0, 500000.0, 1.0), .is_inverse = GENERATE(false, true)};
  Values qkv = Values::random(dtype, d.batch * d.time * qkv_width_of(d), 1);
  const Values out = run_rotary(qkv, d, options);
  require_close(out, turned(qkv, d, options), 1e-6);  // two products of values of order 1, and cosines, rounded to f32
  const std::int64_t width = qkv_width_of(d), turned_elems = width - kv_heads_of(d) * d.head_dim;
  for (std::int64_t i = 0; i < out.elems(); ++i)
    if (i % width >= turned_elems) REQUIRE(out[i] == qkv[i]);
}

TEST_CASE("rotary angles are scaled as a whole, or as Llama 3.1 does it, or YaRN", "[rotary]") {
  const AttentionDims d{1, 60, 2, GENERATE(16, 64, 128), 1};
  const RotaryScaling scaling = GENERATE(RotaryScaling{.factor = 4}, RotaryScaling{.factor = 8, .context = 32},
                                         RotaryScaling{.factor = 32, .low = 1, .high = 4, .context = 8192},
                                         RotaryScaling{.factor = 2, .low = 0.5, .high = 16, .context = 100},
                                         RotaryScaling{.factor = 4, .first = 1.25, .last = 5.5, .amplitude = 1.138f},
                                         RotaryScaling{.factor = 2, .first = 0, .last = 0.001, .amplitude = 1.069f});
  const RotaryOptions options{
      .base = GENERATE(10000.0, 500000.0), .scaling = scaling, .is_inverse = GENERATE(false, true)};
  CAPTURE(d.head_dim, scaling.factor, scaling.context);
  Values qkv = Values::random(DType::f32, d.batch * d.time * qkv_width_of(d), 1);
  const Values out = run_rotary(qkv, d, options);
  require_close(out, turned(qkv, d, options), 1e-6);
  RotaryOptions plain = options;
  plain.scaling = {};
  CHECK_FALSE(out.same_bytes(run_rotary(qkv, d, plain)));
}

TEST_CASE("rotary angles keep their precision far into a sequence", "[rotary]") {
  const AttentionDims d{1, 20000, 1, 4};
  Values qkv(DType::f32, d.time * qkv_width_of(d));
  for (std::int64_t i = 0; i < qkv.elems(); ++i) qkv.set(i, 1.0);
  require_close(run_rotary(qkv, d, {}), turned(qkv, d, {}), 3e-7);  // an angle of 20000 in f32 would be off by 1e-3
}

TEST_CASE("turning back undoes turning, also in place", "[rotary]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d = GENERATE(from_range(kShapes));
  Values qkv = Values::random(dtype, d.batch * d.time * qkv_width_of(d), 1);
  const auto back = run({qkv}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().rotary(ctx, o[0].buffer(), o[0].buffer(), d, {});
    k().rotary(ctx, o[0].buffer(), o[0].buffer(), d, {.is_inverse = true});
  });
  double largest = 0;
  for (const double x : qkv.list()) largest = std::max(largest, std::abs(x));
  require_close(back[0], qkv.list(), 2 * rounding(dtype) * largest);
}

TEST_CASE("the product of a turned query and a turned key depends on their distance alone", "[rotary]") {
  const AttentionDims d{1, 12, 1, 16};
  Values qkv(DType::f32, d.time * qkv_width_of(d));
  const Values row = Values::random(DType::f32, 2 * d.head_dim, 1);
  for (std::int64_t t = 0; t < d.time; ++t)
    for (std::int64_t i = 0; i < 2 * d.head_dim; ++i) qkv.set(t * qkv_width_of(d) + i, row[i]);
  const Values out = run_rotary(qkv, d, {});
  const auto score = [&](std::int64_t query, std::int64_t key) {
    double sum = 0;
    for (std::int64_t i = 0; i < d.head_dim; ++i)
      sum += out[query * qkv_width_of(d) + i] * out[key * qkv_width_of(d) + d.head_dim + i];
    return sum;
  };
  for (std::int64_t t = 3; t < d.time; ++t) CHECK(score(t, t - 3) == Approx(score(3, 0)).margin(1e-5));
  CHECK(std::abs(score(3, 0) - score(0, 0)) > 0.1);
}

TEST_CASE("rotary positions refuse heads that have no halves", "[rotary]") {
  ExecContext ctx = make_context();
  Values qkv(DType::f32, 9), out(DType::f32, 9);
  REQUIRE_THROWS_WITH(k().rotary(ctx, out.buffer(), qkv.buffer(), {1, 1, 1, 3}, {}),
                      Catch::Contains("rotary positions for head_dim 3"));
}

}  // namespace zs::test::rotary_test
