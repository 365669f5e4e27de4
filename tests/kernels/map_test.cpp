// Functions of single elements.
#include <cmath>
#include <limits>

#include "tests/kernels/testing.h"

namespace zs::test::map_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

Strided dense(Values& values) { return {values.buffer(), {1}}; }

Values mapped(MapOp op, DType to, std::vector<Values*> in) {
  const std::int64_t n = in.front()->elems();
  return run({Values::poison(to, n)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    Map map{.op = op, .shape = {n}, .out = dense(o[0])};
    for (std::size_t i = 0; i < in.size(); ++i) map.in[i] = dense(*in[i]);
    k().map(ctx, map);
  })[0];
}

/// Angles of every size, with those next to whole quarters of a turn.
Values angles() {
  std::vector<double> list{0, 1e-30, -1e-5, 3.4e38, -3.4e38, 16777216, 1e9, -1e22, 5.3e15};
  for (int quarter = 1; quarter < 3000; ++quarter) {
    const auto x = static_cast<float>(quarter * 1.57079632679489661923 * (quarter % 2 == 0 ? 1 : 4099));
    for (const float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, INFINITY), -x})
      list.push_back(static_cast<double>(y));
  }
  const CounterRng rng(4);
  for (std::uint64_t i = 0; i < 4000; ++i)
    list.push_back(std::exp2(rng.uniform(i) * 250 - 125) * (i % 2 == 0 ? 1 : -1));
  return Values::of(DType::f32, list);
}

}  // namespace

TEST_CASE("sine and cosine are right to the last place, however large the angle") {
  const bool is_sine = GENERATE(false, true);
  Values x = angles();
  const Values y = mapped(is_sine ? MapOp::sin : MapOp::cos, DType::f32, {&x});
  double worst = 0;
  for (std::int64_t i = 0; i < x.elems(); ++i) {
    const double expected = is_sine ? std::sin(x[i]) : std::cos(x[i]);
    const auto last = static_cast<double>(std::nextafter(std::abs(static_cast<float>(expected)), 2.0f) -
                                          std::abs(static_cast<float>(expected)));
    worst = std::max(worst, std::abs(y[i] - expected) / last);
  }
  CHECK(worst < 0.51);
  Values endless = Values::of(DType::f32, {INFINITY, NAN});
  for (const Values& none : {mapped(MapOp::sin, DType::f32, {&endless}), mapped(MapOp::cos, DType::f32, {&endless})})
    CHECK((std::isnan(none[0]) && std::isnan(none[1])));
}

TEST_CASE("integers are computed exactly and wrap around") {
  constexpr double kLeast = -2147483648.0;
  Values a = Values::of(DType::i32, {2147483647, -7, 16777217, kLeast, 7, 46341, 0, kLeast}),
         b = Values::of(DType::i32, {1, 2, 16777216, -1, -2, 46341, 5, kLeast}),
         c = Values::of(DType::i32, {1, 2, 3, 4, 5, 6, 7, 8});
  const auto is = [&](MapOp op, DType to, const std::vector<double>& expected) {
    CAPTURE(static_cast<int>(op));
    CHECK(mapped(op, to, {&a, &b, &c}).same_bytes(Values::of(to, expected)));
  };
  is(MapOp::int_add, DType::i32, {kLeast, -5, 33554433, 2147483647, 5, 92682, 5, 0});
  is(MapOp::int_sub, DType::i32, {2147483646, -9, 1, -2147483647, 9, 0, -5, 0});
  is(MapOp::int_mul, DType::i32, {2147483647, -14, 16777216, kLeast, -14, -2147479015, 0, 0});
  is(MapOp::floor_div, DType::i32, {2147483647, -4, 1, kLeast, -4, 1, 0, 1});
  is(MapOp::remainder, DType::i32, {0, 1, 1, 0, -1, 0, 0, 0});
  is(MapOp::int_where, DType::i32, {1, 2, 16777216, -1, -2, 46341, 7, kLeast});
  is(MapOp::int_eq, DType::f32, {0, 0, 0, 0, 0, 1, 0, 1});
  is(MapOp::int_lt, DType::f32, {0, 1, 0, 1, 0, 0, 1, 0});
  is(MapOp::int_gt, DType::f32, {1, 0, 1, 0, 1, 0, 0, 0});
}

}  // namespace zs::test::map_test
