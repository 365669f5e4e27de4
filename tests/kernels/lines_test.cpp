// Elements along a dim: their order and their running sums.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/testing.h"

namespace zs::test::lines_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

/// Numbers of which many are equal, with NaN, both zeros and infinity where the dtype has them.
Values with_equal_ones(DType dtype, std::int64_t n) {
  Values values(dtype, n);
  const CounterRng rng(3);
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = std::floor(rng.uniform(static_cast<std::uint64_t>(i)) * 9) - 4;
    const bool is_special = dtype != DType::i32 && i % 7 == 3;
    values.set(i, is_special ? std::vector<double>{NAN, -0.0, -INFINITY}[static_cast<std::size_t>(i / 7 % 3)] : x);
  }
  return values;
}

bool comes_before(double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; }

}  // namespace

TEST_CASE("lines are ordered as a stable sort orders them, NaN being the largest") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::i32);
  const LineDims dims = GENERATE(LineDims{3, 50, 50, 1}, LineDims{2, 17, 5, 6}, LineDims{1, 1, 1, 4},
                                 LineDims{2, 9, 0, 2}, LineDims{40, 300, 7, 1});
  const bool is_descending = GENERATE(false, true);
  Values x = with_equal_ones(dtype, dims.outer * dims.lines * dims.inner);
  if (dtype == DType::i32) x.set(0, 2147483647), x.set(x.elems() - 1, -2147483648.0);
  const auto out = run({Values::poison(DType::i32, dims.outer * dims.count * dims.inner)},
                       [&](ExecContext& ctx, std::vector<Values>& o) {
                         k().order_lines(ctx, o[0].buffer(), x.buffer(), dims, is_descending);
                       });
  for (std::int64_t outer = 0; outer < dims.outer; ++outer)
    for (std::int64_t e = 0; e < dims.inner; ++e) {
      const auto at = [&](std::int32_t i) { return x[(outer * dims.lines + i) * dims.inner + e]; };
      std::vector<std::int32_t> places(static_cast<std::size_t>(dims.lines));
      for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(i);
      std::stable_sort(places.begin(), places.end(), [&](std::int32_t a, std::int32_t b) {
        return is_descending ? comes_before(at(b), at(a)) : comes_before(at(a), at(b));
      });
      for (std::int64_t i = 0; i < dims.count; ++i) {
        CAPTURE(outer, e, i);
        REQUIRE(out[0].at<std::int32_t>((outer * dims.count + i) * dims.inner + e) ==
                places[static_cast<std::size_t>(i)]);
      }
    }
}

TEST_CASE("running sums are carried in f64 from either end") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::i32);
  const LineDims dims = GENERATE(LineDims{3, 50, 50, 1}, LineDims{2, 17, 17, 6}, LineDims{40, 300, 300, 1});
  const bool is_backward = GENERATE(false, true);
  const std::int64_t n = dims.outer * dims.lines * dims.inner;
  Values x = dtype == DType::i32 ? with_equal_ones(dtype, n) : Values::random(dtype, n, 5);
  if (dtype == DType::i32) x.set(0, 2147483647), x.set(dims.inner, 2147483647);  // their sum wraps around
  const auto out = run({Values::poison(dtype, n)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().sum_lines(ctx, o[0].buffer(), x.buffer(), dims, is_backward);
  });
  Values expected(dtype, n);
  for (std::int64_t outer = 0; outer < dims.outer; ++outer)
    for (std::int64_t e = 0; e < dims.inner; ++e) {
      double sum = 0;
      for (std::int64_t step = 0; step < dims.lines; ++step) {
        const std::int64_t i = is_backward ? dims.lines - 1 - step : step,
                           at = (outer * dims.lines + i) * dims.inner + e;
        sum += x[at];
        const double turns = dtype == DType::i32 ? std::floor(sum / 4294967296.0 + 0.5) : 0;
        expected.set(at, sum - turns * 4294967296.0);
      }
    }
  REQUIRE(out[0].same_bytes(expected));
}

}  // namespace zs::test::lines_test
