#include "tests/kernels/testing.h"

namespace zs::test::stochastic_cast_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

constexpr StochasticRounding kWhole{0x0123456789abcdefull, 0, std::int64_t{1} << 40, 0};

Values rounded(Values& in, const StochasticRounding& rounding) {
  return run({Values::poison(DType::bf16, in.elems())}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().stochastic_cast(ctx, o[0].buffer(), in.buffer(), rounding);
  })[0];
}

Values constant(std::int64_t n, double x) {
  return Values::of(DType::f32, std::vector<double>(static_cast<std::size_t>(n), x));
}

}  // namespace

TEST_CASE("a stochastic cast gives a neighbour, and what bf16 holds as it is") {
  const std::int64_t n = GENERATE(1, 7, 8, 1003, 100003);
  Values in = Values::random(DType::f32, n, 1, 10.0);
  if (n > 100) {
    in.set(0, 0.0);
    in.set(1, -1.5);
    in.set(2, std::numeric_limits<double>::infinity());
    in.set(3, std::nan(""));
    in.set(4, 1e-42);  // subnormal
  }
  const Values out = rounded(in, kWhole);
  std::int64_t up = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::isnan(in[i])) {
      REQUIRE(std::isnan(out[i]));
      continue;
    }
    const std::uint32_t word = in.at<std::uint32_t>(i);
    const std::uint16_t below = static_cast<std::uint16_t>(word >> 16), bits = out.at<BFloat16>(i).bits;
    const bool is_exact = word % 0x10000 == 0;
    REQUIRE((bits == below || (!is_exact && bits == below + 1)));
    up += bits != below;
  }
  if (n > 100)
    CHECK(std::abs(static_cast<double>(up) / static_cast<double>(n) - 0.5) < 0.06);  // four deviations of 1003
}

TEST_CASE("the mean of stochastic casts is the number itself") {
  const double part = GENERATE(0.003, 0.3, 0.5, 0.9), x = 1 + part * 0x1.0p-7;
  constexpr std::int64_t n = 200000;
  const bool is_same = GENERATE(false, true);
  Values in = constant(n, x);
  if (!is_same)  // all different, the same on average
    for (std::int64_t i = 0; i < n; ++i)
      in.set(i, x + static_cast<double>(i % 100 - 50) * (i % 200 < 100 ? 0x1.0p-23 : -0x1.0p-23));
  const Values out = rounded(in, kWhole);
  double sum = 0, exact = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    sum += (out[i] - 1) * 0x1.0p7 / static_cast<double>(n);
    exact += (in[i] - 1) * 0x1.0p7 / static_cast<double>(n);
  }
  CHECK(std::abs(sum - exact) < 4 * std::sqrt(part * (1 - part) / static_cast<double>(n)));
}

TEST_CASE("a stochastic cast depends on the element and the key, not on the cut") {
  const std::int64_t n = 5000;
  Values in = constant(n, 1 + 0x1.0p-8);
  const Values whole = rounded(in, kWhole);
  StochasticRounding other = kWhole;
  other.key += 1;
  const Values with_other_key = rounded(in, other);
  std::int64_t different = 0;
  for (std::int64_t i = 0; i < n; ++i) different += whole[i] != with_other_key[i];
  CHECK(std::abs(different - n / 2) < 200);
  const std::vector<std::int64_t> cuts = {0, 1, 8, 21, 500, 4999, n};
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    Values part = constant(cuts[c + 1] - cuts[c], 1 + 0x1.0p-8);
    StochasticRounding rounding = kWhole;
    rounding.first = cuts[c];
    const Values out = rounded(part, rounding);
    for (std::int64_t i = 0; i < out.elems(); ++i) REQUIRE(out[i] == whole[cuts[c] + i]);
  }
  // Columns 3 to 9 of a matrix of 50.
  Values columns = constant(n / 50 * 7, 1 + 0x1.0p-8);
  const Values out = rounded(columns, {kWhole.key, 3, 7, 50});
  for (std::int64_t i = 0; i < out.elems(); ++i) REQUIRE(out[i] == whole[i / 7 * 50 + 3 + i % 7]);
}

TEST_CASE("a stochastic cast refuses other dtypes") {
  ExecContext ctx = make_context();
  Values wide(DType::f32, 4), narrow(DType::bf16, 4);
  REQUIRE_THROWS_AS(k().stochastic_cast(ctx, wide.buffer(), wide.buffer(), kWhole), Error);
  REQUIRE_THROWS_AS(k().stochastic_cast(ctx, narrow.buffer(), narrow.buffer(), kWhole), Error);
}

}  // namespace zs::test::stochastic_cast_test
