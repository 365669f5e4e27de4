#include "tests/kernels/testing.h"

/// Products that compute GELU, or its gradient, which the CPU's kernels do not have.
namespace zs::test::gelu_product_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

constexpr double kRootTwoOverPi = 0.79788456080286535588;

double gelu(double x) { return 0.5 * x * (1 + std::tanh(kRootTwoOverPi * (x + 0.044715 * x * x * x))); }

double gelu_slope(double x) {
  return central_difference({x}, 0, [](const std::vector<double>& at) { return gelu(at[0]); });
}

/// x W^T + bias, as sums in double precision.
std::vector<double> sums_of(const Values& x, const Values& weight, const Values& bias, const MatmulDims& d) {
  std::vector<double> sums;
  for (std::int64_t i = 0; i < d.m; ++i)
    for (std::int64_t j = 0; j < d.n; ++j) {
      double sum = bias.elems() > 0 ? bias[j] : 0.0;
      for (std::int64_t l = 0; l < d.k; ++l) sum += x[i * d.k + l] * weight[d.transpose_b ? j * d.k + l : l * d.n + j];
      sums.push_back(sum);
    }
  return sums;
}

Buffer behind_first(Values& values) {
  Buffer buffer = values.buffer();
  buffer.data = static_cast<std::byte*>(buffer.data) + size_of(values.dtype());
  return {buffer.data, buffer.elems - 1, buffer.dtype, buffer.device};
}

/// Rows of 8 are what a library may have such products for, others what it has not.
MatmulDims dims_of(int which) {
  constexpr MatmulDims kDims[] = {{1, 8, 1},  {64, 64, 64}, {33, 104, 70}, {100, 16, 19},
                                  {3, 17, 5}, {40, 33, 64}, {1, 1, 1}};
  return kDims[which];
}

}  // namespace

TEST_CASE("a product with GELU gives the product, and GELU of it, in whatever way it is computed") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  MatmulDims d = dims_of(GENERATE(range(0, 7)));
  d.transpose_b = GENERATE(true, false);
  const bool has_bias = GENERATE(true, false);
  Values x = Values::random(dtype, d.m * d.k, 1), weight = Values::random(dtype, d.k * d.n, 2, 0.3),
         bias = Values::random(dtype, has_bias ? d.n : 0, 3);
  const Values poison = Values::poison(dtype, d.m * d.n);
  const auto out = run({poison, poison}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().matmul_gelu(ctx, o[1].buffer(), {o[0].buffer(), x.buffer(), weight.buffer(), bias.buffer()}, d);
  });
  const std::vector<double> sums = sums_of(x, weight, bias, d);
  require_close(out[0], sums, 2e-5);
  REQUIRE(out[1].elems() == d.m * d.n);
  for (std::int64_t i = 0; i < out[1].elems(); ++i) {
    const double sum = sums[static_cast<std::size_t>(i)], expected = gelu(sum);
    // GELU of the rounded sum, rounded again: its slope is at most 1.13.
    const double tolerance = 3e-5 + rounding(dtype) * (1.13 * std::abs(sum) + std::abs(expected));
    INFO("element " << i << ", of sum " << sum << ", is " << out[1][i] << ", expected " << expected);
    REQUIRE(std::abs(out[1][i] - expected) <= tolerance);
  }
}

TEST_CASE("a product with GELU's gradient is the product times the slope, in whatever way it is computed") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const MatmulDims d = dims_of(GENERATE(range(0, 7)));
  Values dy = Values::random(dtype, d.m * d.k, 1), weight = Values::random(dtype, d.k * d.n, 2, 0.3),
         x = Values::random(dtype, d.m * d.n, 3, 2);
  const auto out = run({Values::poison(dtype, d.m * d.n)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().matmul_gelu_backward(ctx, x.buffer(), {o[0].buffer(), dy.buffer(), weight.buffer(), {}}, d);
  });
  const std::vector<double> sums = sums_of(dy, weight, Values(dtype, 0), d);
  for (std::int64_t i = 0; i < x.elems(); ++i) {
    const double sum = sums[static_cast<std::size_t>(i)], want = sum * gelu_slope(x[i]);
    INFO("element " << i << " is " << out[0][i] << ", expected " << want);
    // Of the product and of the result; and of the slope, where it is small beside what it is made of.
    REQUIRE(std::abs(out[0][i] - want) <= 3e-5 + rounding(dtype) * (2 * std::abs(want) + std::abs(sum)));
  }
}

TEST_CASE("products with GELU go anywhere in memory") {
  const std::int64_t m = 5, n = 16, inner = 8;
  const MatmulDims d{m, n, inner};
  Values a = Values::random(DType::bf16, m * inner, 1), b = Values::random(DType::bf16, inner * n, 2);
  const Values poison = Values::poison(DType::bf16, m * n + 1);
  // 0: both in place; 1: the sums lie askew; 2: what GELU gives does.
  const auto outputs = [&](int askew) {
    Values sums = poison, y = poison;
    ExecContext ctx = make_context();
    const auto at = [&](Values& values, bool is_askew) {
      if (is_askew) return behind_first(values);
      Buffer buffer = values.buffer();
      return Buffer{buffer.data, buffer.elems - 1, buffer.dtype, buffer.device};
    };
    k().matmul_gelu(ctx, at(y, askew == 2), {at(sums, askew == 1), a.buffer(), b.buffer(), {}}, d);
    std::vector<double> all;
    for (std::int64_t i = 0; i < m * n; ++i) all.push_back(y[i + (askew == 2 ? 1 : 0)]);
    Values dx = poison;
    k().matmul_gelu_backward(ctx, at(sums, askew == 1), {at(dx, askew == 2), a.buffer(), b.buffer(), {}}, d);
    for (std::int64_t i = 0; i < m * n; ++i) all.push_back(dx[i + (askew == 2 ? 1 : 0)]);
    return all;
  };
  const std::vector<double> in_place = outputs(0);
  for (const int askew : {1, 2}) {
    const std::vector<double> moved = outputs(askew);
    for (std::size_t i = 0; i < moved.size(); ++i)
      REQUIRE(std::abs(moved[i] - in_place[i]) <= 0.02 * (0.5 + std::abs(in_place[i])));
  }
}

TEST_CASE("products with GELU refuse what does not fit") {
  ExecContext ctx = make_context();
  Values a(DType::bf16, 16), b(DType::bf16, 64), c(DType::bf16, 16), y(DType::bf16, 16), wide(DType::f32, 16),
      few(DType::bf16, 8);
  MatmulDims d{2, 8, 8, false, true};
  REQUIRE_THROWS_AS(k().matmul_gelu(ctx, few.buffer(), {c.buffer(), a.buffer(), b.buffer(), {}}, d), Error);
  REQUIRE_THROWS_AS(k().matmul_gelu(ctx, wide.buffer(), {wide.buffer(), a.buffer(), b.buffer(), {}}, d), Error);
  REQUIRE_THROWS_AS(k().matmul_gelu_backward(ctx, y.buffer(), {c.buffer(), a.buffer(), b.buffer(), few.buffer()}, d),
                    Error);
  d.beta = 1;
  REQUIRE_THROWS_AS(k().matmul_gelu(ctx, y.buffer(), {c.buffer(), a.buffer(), b.buffer(), {}}, d), Error);
}

}  // namespace zs::test::gelu_product_test
