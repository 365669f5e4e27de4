#include <omp.h>

#include "tests/kernels/testing.h"

namespace zs::test::matmul_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

struct Types {
  DType operand, result;
};

std::vector<double> reference(const Values& c, const Values& a, const Values& b, const Values& bias,
                              const MatmulDims& d) {
  std::vector<double> out(static_cast<std::size_t>(d.m * d.n));
  for (std::int64_t i = 0; i < d.m; ++i)
    for (std::int64_t j = 0; j < d.n; ++j) {
      double sum = d.beta != 0 ? c[i * d.n + j] : 0.0;
      for (std::int64_t l = 0; l < d.k; ++l)
        sum += a[d.transpose_a ? l * d.m + i : i * d.k + l] * b[d.transpose_b ? j * d.k + l : l * d.n + j];
      out[static_cast<std::size_t>(i * d.n + j)] = sum + (bias.elems() > 0 ? bias[j] : 0.0);
    }
  return out;
}

}  // namespace

TEST_CASE("a product of any shape, transposes, beta and bias equals the definition") {
  const Types types =
      GENERATE(Types{DType::f32, DType::f32}, Types{DType::bf16, DType::f32}, Types{DType::bf16, DType::bf16});
  MatmulDims d =
      GENERATE(MatmulDims{1, 1, 1}, MatmulDims{3, 17, 5}, MatmulDims{100, 1, 64}, MatmulDims{1, 100, 64},
               MatmulDims{64, 64, 64}, MatmulDims{401, 33, 19}, MatmulDims{33, 403, 70}, MatmulDims{64, 100, 1});
  d.transpose_a = GENERATE(false, true);
  d.transpose_b = GENERATE(false, true);
  d.beta = GENERATE(0.0f, 1.0f);
  const bool with_bias = GENERATE(false, true);
  Values a = Values::random(types.operand, d.m * d.k, 1), b = Values::random(types.operand, d.k * d.n, 2);
  Values bias = Values::random(types.result, with_bias ? d.n : 0, 3);
  const Values c =
      d.beta == 0.0f ? Values::poison(types.result, d.m * d.n) : Values::random(types.result, d.m * d.n, 4);
  const auto out = run({c}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().matmul(ctx, o[0].buffer(), a.buffer(), b.buffer(), bias.buffer(), d);
  });
  require_close(out[0], reference(c, a, b, bias, d), 2e-5);  // 70 f32 additions of order 10 at most
}

TEST_CASE("a product of no rows is empty, and one of no terms is zeros or what was there") {
  const Types types =
      GENERATE(Types{DType::f32, DType::f32}, Types{DType::bf16, DType::f32}, Types{DType::bf16, DType::bf16});
  MatmulDims d = GENERATE(MatmulDims{0, 7, 5}, MatmulDims{7, 0, 5}, MatmulDims{7, 5, 0}, MatmulDims{0, 0, 0});
  d.transpose_a = GENERATE(false, true);
  d.beta = GENERATE(0.0f, 1.0f);
  Values a = Values::random(types.operand, d.m * d.k, 1), b = Values::random(types.operand, d.k * d.n, 2),
         none(types.result, 0);
  const Values c =
      d.beta == 0.0f ? Values::poison(types.result, d.m * d.n) : Values::random(types.result, d.m * d.n, 4);
  const auto out = run({c}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().matmul(ctx, o[0].buffer(), a.buffer(), b.buffer(), none.buffer(), d);
  });
  REQUIRE(out[0].list() == reference(c, a, b, none, d));
}

TEST_CASE("a product adds a bias of its operands' type to an f32 result") {
  const MatmulDims d{5, 20, 7, false, true};
  Values a = Values::random(DType::bf16, d.m * d.k, 1), b = Values::random(DType::bf16, d.k * d.n, 2),
         bias = Values::random(DType::bf16, d.n, 3);
  const Values c = Values::poison(DType::f32, d.m * d.n);
  const auto out = run({c}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().matmul(ctx, o[0].buffer(), a.buffer(), b.buffer(), bias.buffer(), d);
  });
  require_close(out[0], reference(c, a, b, bias, d), 1e-5);
}

TEST_CASE("a product has the same bits with 1, 2 and 3 threads and when repeated") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  MatmulDims d = GENERATE(MatmulDims{1024, 96, 128}, MatmulDims{256, 768, 200}, MatmulDims{500, 500, 500});
  d.transpose_a = GENERATE(false, true);
  d.transpose_b = GENERATE(false, true);
  Values a = Values::random(dtype, d.m * d.k, 1), b = Values::random(dtype, d.k * d.n, 2), none(DType::f32, 0);
  Values first(DType::f32, 0);
  const int before = omp_get_max_threads();
  for (const int threads : {1, 2, 3, 2}) {
    ExecContext ctx = make_context(threads);
    for (int repeat = 0; repeat < 2; ++repeat) {
      Values c = Values::poison(DType::f32, d.m * d.n);
      k().matmul(ctx, c.buffer(), a.buffer(), b.buffer(), none.buffer(), d);
      if (first.elems() == 0) first = c;
      INFO(threads << " threads, repeat " << repeat);
      REQUIRE(first.same_bytes(c));
    }
  }
  REQUIRE(omp_get_max_threads() == before);
}

TEST_CASE("a product of integers is exact") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  MatmulDims d =
      GENERATE(MatmulDims{64, 400, 300}, MatmulDims{40, 1100, 70}, MatmulDims{1100, 40, 70}, MatmulDims{70, 40, 2100});
  d.transpose_a = GENERATE(false, true);
  d.transpose_b = GENERATE(false, true);
  Values a(dtype, d.m * d.k), b(dtype, d.k * d.n), none(DType::f32, 0), c = Values::poison(DType::f32, d.m * d.n);
  for (std::int64_t i = 0; i < a.elems(); ++i) a.set(i, static_cast<double>(i % 7 - 3));
  for (std::int64_t i = 0; i < b.elems(); ++i) b.set(i, static_cast<double>(i % 11 - 5));
  const auto out = run({c}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().matmul(ctx, o[0].buffer(), a.buffer(), b.buffer(), none.buffer(), d);
  });
  REQUIRE(out[0].list() == reference(c, a, b, none, d));
}

TEST_CASE("a product refuses operands that do not fit") {
  ExecContext ctx = make_context();
  Values a(DType::f32, 6), b(DType::f32, 6), c(DType::f32, 4), narrow(DType::bf16, 4), none(DType::f32, 0);
  REQUIRE_THROWS_AS(k().matmul(ctx, c.buffer(), a.buffer(), b.buffer(), none.buffer(), MatmulDims{2, 2, 2}), Error);
  REQUIRE_THROWS_AS(k().matmul(ctx, narrow.buffer(), a.buffer(), b.buffer(), none.buffer(), MatmulDims{2, 2, 3}),
                    Error);
  REQUIRE_THROWS_AS(k().matmul(ctx, c.buffer(), a.buffer(), b.buffer(), c.buffer(), MatmulDims{2, 2, 3}), Error);
}

}  // namespace zs::test::matmul_test
