// The norm of gradients, in each of its forms, and clipping by it.
#include <algorithm>
#include <numeric>

#include "tests/kernels/testing.h"

namespace zs::test::grad_norm_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }
constexpr std::int32_t kNoExponent = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kNotFinite = std::numeric_limits<std::int32_t>::max();

Values zero_of(DType dtype) { return Values::of(dtype, {0}); }
Values no_exponent() { return Values::of(DType::i32, {static_cast<double>(kNoExponent)}); }

struct OrderFree {
  std::int32_t exponent;
  std::int64_t total;
};
/// The order-free norm of `in`, taken in pieces [cuts[i], cuts[i + 1]) visited in the given order.
OrderFree order_free(Values& in, const std::vector<std::int64_t>& cuts, const std::vector<std::size_t>& order,
                     int shift, int threads) {
  ExecContext ctx = make_context(threads);
  Values exponent = no_exponent(), total = zero_of(DType::i64);
  for (const std::size_t i : order)
    k().max_exponent(ctx, exponent.buffer(), in.buffer().slice(cuts[i], cuts[i + 1] - cuts[i]));
  for (const std::size_t i : order)
    k().fixed_point_squares(ctx, total.buffer(), in.buffer().slice(cuts[i], cuts[i + 1] - cuts[i]), exponent.buffer(),
                            shift);
  return {exponent.at<std::int32_t>(0), total.at<std::int64_t>(0)};
}

/// The norm of `in` by `power`, summed in two pieces, as clip_coefficient reads it.
double norm_by(Values& in, float power) {
  ExecContext ctx = make_context();
  Values largest = Values::of(DType::i32, {0}), total = zero_of(DType::f64), none(DType::i32, 0),
         scalars = scalars_of({});
  const std::int64_t cut = in.buffer().elems / 3;
  const Buffer parts[] = {in.buffer().slice(0, cut), in.buffer().slice(cut, in.buffer().elems - cut)};
  for (const Buffer& part : parts) k().max_magnitude(ctx, largest.buffer(), part);
  if (!std::isinf(power))
    for (const Buffer& part : parts) k().power_sum(ctx, total.buffer(), part, largest.buffer(), power);
  k().norm_of_powers(ctx, total.buffer(), largest.buffer(), power);
  k().clip_coefficient(ctx, scalars.buffer(), total.buffer(), none.buffer(), 0, 1.0f);
  CHECK(scalars[5] == (std::isfinite(scalars[4]) ? 0.0 : 1.0));
  return scalars[4];
}

}  // namespace

TEST_CASE("a squared norm is added to what is there, in double precision") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(1, 3, 17, 100, 256, 100003);
  Values in = Values::random(dtype, n, 1, 10.0);
  const auto out = run({Values::of(DType::f64, {5.0})}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().squared_norm(ctx, o[0].buffer(), in.buffer());
  });
  REQUIRE(out[0][0] == Approx(5.0 + dot(in.list(), in.list())).epsilon(1e-13));
}

TEST_CASE("the order-free norm is the same integer for every cut, order and number of threads") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = 70001;
  const int shift = 40;
  Values in = Values::random(dtype, n, 1);
  in.set(40000, 77.0);
  const OrderFree whole = order_free(in, {0, n}, {0}, shift, 1);
  REQUIRE(whole.exponent == 6);
  const std::vector<std::int64_t> cuts = {0, 1, 1000, 40000, 40001, 50000, 69999, n};
  std::vector<std::size_t> order(cuts.size() - 1);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int trial = 0; trial < 5; ++trial) {
    std::next_permutation(order.begin(), order.end());
    std::reverse(order.begin() + trial, order.end());
    const OrderFree cut = order_free(in, cuts, order, shift, 1 + trial % 3);
    REQUIRE(cut.exponent == whole.exponent);
    REQUIRE(cut.total == whole.total);
  }
  double expected = 0;
  for (std::int64_t i = 0; i < n; ++i) expected += std::floor(std::ldexp(in[i] * in[i], shift - 2 * 6) + 0.5);
  REQUIRE(static_cast<double>(whole.total) == expected);
}

TEST_CASE("squares in fixed point round halves up") {
  Values in = Values::of(DType::f32, {1.0, 0.5, -0.5, 0.25});
  const OrderFree norm = order_free(in, {0, 4}, {0}, 1, 1);
  CHECK(norm.exponent == 0);
  CHECK(norm.total == 2 + 1 + 1 + 0);
}

TEST_CASE("the largest exponent counts subnormals, ignores zeros and reports what is not finite") {
  const double value = GENERATE(1.0, 1.999, 2.0, 0.5, -3.0, 0x1.0p-126, 0x1.0p-127, 0x1.0p-149, 3e38);
  Values in = Values::of(DType::f32, std::vector<double>(100, 0.0));
  ExecContext ctx = make_context();
  Values out = no_exponent();
  k().max_exponent(ctx, out.buffer(), in.buffer());
  REQUIRE(out.at<std::int32_t>(0) == kNoExponent);
  in.set(GENERATE(33, 50, 99), value);
  k().max_exponent(ctx, out.buffer(), in.buffer());
  REQUIRE(out.at<std::int32_t>(0) == std::ilogb(value));
  in.set(7, GENERATE(std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()));
  k().max_exponent(ctx, out.buffer(), in.buffer());
  REQUIRE(out.at<std::int32_t>(0) == kNotFinite);
}

TEST_CASE("the clip coefficient comes from either form of the norm") {
  ExecContext ctx = make_context();
  Values in = Values::of(DType::f32, {3.0, 4.0, 0.0}), none(DType::i32, 0), exponent = no_exponent(),
         fixed = zero_of(DType::i64);
  Values squares = zero_of(DType::f64);
  k().squared_norm(ctx, squares.buffer(), in.buffer());
  k().max_exponent(ctx, exponent.buffer(), in.buffer());
  k().fixed_point_squares(ctx, fixed.buffer(), in.buffer(), exponent.buffer(), 40);
  const bool use_fixed = GENERATE(true, false);
  const auto clip = [&](float limit) {
    Values scalars = scalars_of({0.1f, 0.2f, 0.3f, -1.0f, -1.0f, -1.0f});
    k().clip_coefficient(ctx, scalars.buffer(), use_fixed ? fixed.buffer() : squares.buffer(),
                         use_fixed ? exponent.buffer() : none.buffer(), 40, limit);
    return scalars;
  };
  require_close(clip(1.0f), {0.1, 0.2, 0.3, 0.2, 5.0, 0.0}, 1e-7);
  require_close(clip(10.0f), {0.1, 0.2, 0.3, 1.0, 5.0, 0.0}, 1e-7);
  require_close(clip(0.0f), {0.1, 0.2, 0.3, 1.0, 5.0, 0.0}, 1e-7);
}

TEST_CASE("a norm of nothing is 0 and one that is not finite asks to skip the step") {
  ExecContext ctx = make_context();
  const double bad = GENERATE(0.0, std::numeric_limits<double>::infinity(), std::nan(""));
  const bool finite = bad == 0.0;
  Values in = Values::of(DType::f32, {bad, 0.0}), none(DType::i32, 0), exponent = no_exponent(),
         fixed = zero_of(DType::i64);
  Values squares = zero_of(DType::f64), first = scalars_of({}), second = scalars_of({});
  k().squared_norm(ctx, squares.buffer(), in.buffer());
  k().max_exponent(ctx, exponent.buffer(), in.buffer());
  k().fixed_point_squares(ctx, fixed.buffer(), in.buffer(), exponent.buffer(), 40);
  k().clip_coefficient(ctx, first.buffer(), squares.buffer(), none.buffer(), 0, 1.0f);
  k().clip_coefficient(ctx, second.buffer(), fixed.buffer(), exponent.buffer(), 40, 1.0f);
  for (const Values* scalars : {&first, &second}) {
    REQUIRE((*scalars)[5] == (finite ? 0.0 : 1.0));
    REQUIRE(std::isfinite((*scalars)[4]) == finite);
  }
}

TEST_CASE("a step's corrections go by the updates so far, of which a skipped step is none") {
  using Kind = StepCorrection::Kind;
  ExecContext ctx = make_context();
  const double lr = static_cast<double>(0.25f), b1 = static_cast<double>(0.9f), b2 = static_cast<double>(0.95f);
  const double skip = GENERATE(0.0, 1.0), updates = GENERATE(0.0, 1.0, 999.0);
  Values counts = Values::of(DType::f64, {updates, 0.5, updates, 0.0});
  Values first = scalars_of({0, 0, 0, 0.125f, 3, static_cast<float>(skip)});
  const auto corrected = [&](Kind kind, float beta1, float clip) {
    Values scalars = scalars_of({0.25f, 1, 1, clip, -1, -1});
    k().correct_scalars(ctx, scalars.buffer(), first.buffer(), counts.buffer().slice(0, 2), {kind, beta1, 0.95f});
    return scalars;
  };
  const double second = 1 - std::pow(b2, updates + 1);
  require_close(corrected(Kind::none, 0.9f, 1), {lr, 1, 1, 0.125, 3, skip}, 0);
  require_close(corrected(Kind::adamw, 0.9f, 1), {lr, 1 - std::pow(b1, updates + 1), second, 0.125, 3, skip}, 1e-7);
  require_close(corrected(Kind::schedule_free, 0.9f, 1), {lr, lr * lr / (0.5 + lr * lr), second, 0.125, 3, skip}, 1e-7);
  require_close(corrected(Kind::average, 0.9f, -1), {updates == 0 ? 1 : 1 - b1, 1, 1, -1, 3, updates == 0 ? 0 : skip},
                1e-7);
  Values scalars = corrected(Kind::adamw, 0.9f, 1);
  k().count_updates(ctx, counts.buffer(), scalars.buffer());
  const double more = 1 - skip;
  require_close(counts, {updates + more, 0.5 + more * lr * lr, updates + more, more * lr * lr}, 0);
}

TEST_CASE("sums of many parts at once are those of one part after the other") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const int count = GENERATE(0, 1, 5, 97, 200);  // a launch on GPUs takes 96
  Values in = Values::random(dtype, 20000, 1);
  std::vector<Buffer> parts;
  for (int i = 0; i < count; ++i) parts.push_back(in.buffer().slice(i * 13 % 97, i % 7 == 3 ? 0 : i % 11 * 1801 + 1));
  const auto sums = [&](const std::vector<std::vector<Buffer>>& calls) {
    std::vector<Values> out{zero_of(DType::f64), no_exponent(), zero_of(DType::i64), zero_of(DType::i32),
                            zero_of(DType::f64)};
    ExecContext ctx = make_context();
    for (const auto& call : calls) {
      k().squared_norm(ctx, out[0].buffer(), call);
      k().max_exponent(ctx, out[1].buffer(), call);
      k().max_magnitude(ctx, out[3].buffer(), call);
    }
    for (const auto& call : calls) {
      k().fixed_point_squares(ctx, out[2].buffer(), call, out[1].buffer(), 40);
      k().power_sum(ctx, out[4].buffer(), call, out[3].buffer(), 3.0f);
    }
    return out;
  };
  std::vector<std::vector<Buffer>> apart;
  for (const Buffer& part : parts) apart.push_back({part});
  const auto together = sums({parts}), one_by_one = sums(apart);
  for (const std::size_t exact : {1u, 2u, 3u}) CHECK(together[exact].same_bytes(one_by_one[exact]));
  for (const std::size_t sum : {0u, 4u}) CHECK(together[sum][0] == Approx(one_by_one[sum][0]).epsilon(1e-12));
}

TEST_CASE("a norm of any power follows its formula, however large or small the elements are") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(1, 37, 100003);
  const double size = GENERATE(1.0, 1e-30, 1e30);
  const float power = GENERATE(0.5f, 1.0f, 2.0f, 3.0f, 12.0f, std::numeric_limits<float>::infinity());
  Values in = Values::random(dtype, n, 1, size);
  const auto list = in.list();
  double most = 0, sum = 0;
  for (const double x : list) most = std::max(most, std::abs(x));
  for (const double x : list) sum += std::pow(std::abs(x) / most, static_cast<double>(power));
  const double expected = std::isinf(power) ? most : most * std::pow(sum, 1 / static_cast<double>(power));
  const double found = norm_by(in, power);
  if (expected < 3e38) {
    REQUIRE(found == Approx(expected).epsilon(1e-6).scale(0));
  } else {
    REQUIRE(std::isinf(found));
  }
}

TEST_CASE("a norm of any power is 0 of zeros, and not finite where an element is not") {
  const float power = GENERATE(1.0f, 3.0f, std::numeric_limits<float>::infinity());
  const double bad =
      GENERATE(0.0, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), std::nan(""));
  Values in = Values::of(DType::f32, {0.0, 0.0, 0.0, bad, 0.0});
  if (bad == 0.0) {
    REQUIRE(norm_by(in, power) == 0.0);
  } else {
    REQUIRE_FALSE(std::isfinite(norm_by(in, power)));
  }
}

TEST_CASE("a gradient is scaled by the clip coefficient") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(1, 300, 1003);
  Values grad = Values::random(dtype, n, 1), scalars = scalars_of({0.02f, 1.0f, 1.0f, 0.25f, 0.0f, 0.0f});
  std::vector<double> expected = grad.list();
  for (double& x : expected) x *= 0.25;
  ExecContext ctx = make_context();
  k().clip_gradient(ctx, grad.buffer(), scalars.buffer());
  REQUIRE(grad.list() == expected);
}

}  // namespace zs::test::grad_norm_test
