#include "tests/kernels/testing.h"

namespace zs::test::loss_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

struct Size {
  std::int64_t rows, stride, classes;
};
const std::vector<Size> kSizes = {{1, 1, 1},        {3, 17, 17}, {17, 128, 100},
                                  {64, 1024, 1000}, {5, 16, 3},  {2, 3008, 3001}};

Values targets_of(const Size& size) {
  Values targets(DType::i32, size.rows);
  for (std::int64_t r = 0; r < size.rows; ++r) targets.set(r, static_cast<double>(r * 7 % size.classes));
  return targets;
}

double row_loss(const std::vector<double>& row, std::int64_t target, std::int64_t classes) {
  double sum = 0;
  for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(row[static_cast<std::size_t>(c)]);
  return std::log(sum) - row[static_cast<std::size_t>(target)];
}

std::vector<double> row_of(const Values& logits, const Size& size, std::int64_t r) {
  std::vector<double> row;
  for (std::int64_t c = 0; c < size.stride; ++c) row.push_back(logits[r * size.stride + c]);
  return row;
}

/// Random logits whose masked columns would show.
Values logits_of(const Size& size) {
  Values logits = Values::random(DType::f32, size.rows * size.stride, 1, 3.0);
  for (std::int64_t r = 0; r < size.rows; ++r)
    for (std::int64_t c = size.classes; c < size.stride; ++c) logits.set(r * size.stride + c, 1e6);
  return logits;
}

}  // namespace

TEST_CASE("cross entropy is the log-sum-exp less the target's logit") {
  const Size size = GENERATE(from_range(kSizes));
  Values logits = logits_of(size), targets = targets_of(size);
  const auto out = run({Values::poison(DType::f32, size.rows), Values::poison(DType::f32, size.rows)},
                       [&](ExecContext& ctx, std::vector<Values>& o) {
                         k().cross_entropy_forward(ctx, o[0].buffer(), o[1].buffer(), logits.buffer(), targets.buffer(),
                                                   size.classes);
                       });
  std::vector<double> losses, lse;
  for (std::int64_t r = 0; r < size.rows; ++r) {
    const auto target = targets.at<std::int32_t>(r);
    losses.push_back(row_loss(row_of(logits, size, r), target, size.classes));
    lse.push_back(losses.back() + logits[r * size.stride + target]);
  }
  require_close(out[0], losses, 1e-6);
  require_close(out[1], lse, 1e-6);
}

TEST_CASE("cross entropy of equal logits is the log of the number of classes") {
  const std::int64_t classes = 50257, stride = 50304;
  Values logits = Values::of(DType::f32, std::vector<double>(static_cast<std::size_t>(stride), 20.0)),
         target = Values::of(DType::i32, {50256});
  const auto out = run(
      {Values::poison(DType::f32, 1), Values::poison(DType::f32, 1)}, [&](ExecContext& ctx, std::vector<Values>& o) {
        k().cross_entropy_forward(ctx, o[0].buffer(), o[1].buffer(), logits.buffer(), target.buffer(), classes);
      });
  REQUIRE(out[0][0] == Approx(std::log(50257.0)).epsilon(1e-7));
}

TEST_CASE("a row without a target has its log-sum-exp for a loss and no 1 in its gradient, and no columns have none") {
  const Size size{5, 16, 7};
  Values logits = logits_of(size), none(DType::i32, size.rows), dloss = Values::of(DType::f32, {2.0});
  for (std::int64_t r = 0; r < size.rows; ++r) none.set(r, kNoTarget);
  for (const std::int64_t classes : {size.classes, std::int64_t{0}}) {
    const auto out =
        run({Values::poison(DType::f32, size.rows), Values::poison(DType::f32, size.rows),
             Values::poison(DType::f32, logits.elems())},
            [&](ExecContext& ctx, std::vector<Values>& o) {
              k().cross_entropy_forward(ctx, o[0].buffer(), o[1].buffer(), logits.buffer(), none.buffer(), classes);
              k().cross_entropy_backward(ctx, o[2].buffer(), logits.buffer(), o[1].buffer(), none.buffer(),
                                         dloss.buffer(), classes, 0.5f);
            });
    for (std::int64_t r = 0; r < size.rows; ++r) {
      double sum = 0;
      for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(logits[r * size.stride + c]);
      REQUIRE(out[0][r] == Approx(std::log(sum)).epsilon(1e-6));
      REQUIRE(out[1][r] == out[0][r]);
      for (std::int64_t c = 0; c < size.stride; ++c)
        REQUIRE(out[2][r * size.stride + c] ==
                Approx(c < classes ? std::exp(logits[r * size.stride + c]) / sum : 0.0).margin(1e-6));
    }
  }
}

TEST_CASE("cross entropy of a long row does not depend on where its large and its impossible logits lie") {
  const std::int64_t classes = 4000, at = GENERATE(0, 1023, 1024, 3999);  // chunks have 1024
  std::vector<double> row(static_cast<std::size_t>(classes), -1.0);
  std::fill(row.begin(), row.begin() + 1500, -std::numeric_limits<double>::infinity());
  std::fill(row.begin() + 3000, row.end(), 90.0);
  row[static_cast<std::size_t>(at)] = 95.0;
  Values logits = Values::of(DType::f32, row), target = Values::of(DType::i32, {static_cast<double>(at)});
  const auto out = run(
      {Values::poison(DType::f32, 1), Values::poison(DType::f32, 1)}, [&](ExecContext& ctx, std::vector<Values>& o) {
        k().cross_entropy_forward(ctx, o[0].buffer(), o[1].buffer(), logits.buffer(), target.buffer(), classes);
      });
  const double others = static_cast<double>(at < 3000 ? 1000 : 999);
  REQUIRE(out[1][0] == Approx(95.0 + std::log1p(others * std::exp(-5.0))).epsilon(1e-7));
  REQUIRE(out[0][0] == Approx(std::log1p(others * std::exp(-5.0))).epsilon(1e-5));
}

TEST_CASE("cross entropy of a row with a NaN is NaN wherever it lies") {
  const std::int64_t classes = 2100;
  for (const std::int64_t at : {0, 5, 1024, 1500, 2099}) {
    std::vector<double> row(static_cast<std::size_t>(classes), 1.0);
    row[static_cast<std::size_t>(at)] = std::numeric_limits<double>::quiet_NaN();
    Values logits = Values::of(DType::f32, row), target = Values::of(DType::i32, {7.0});
    const auto out = run(
        {Values::poison(DType::f32, 1), Values::of(DType::f32, {0.0})}, [&](ExecContext& ctx, std::vector<Values>& o) {
          k().cross_entropy_forward(ctx, o[0].buffer(), o[1].buffer(), logits.buffer(), target.buffer(), classes);
        });
    REQUIRE(std::isnan(out[1][0]));
  }
}

TEST_CASE("logits whose powers no float holds have their losses all the same") {
  const double shift = GENERATE(-1000.0, 1000.0);
  const Size size{3, 16, 16};
  Values logits = logits_of(size), shifted = logits, targets = targets_of(size);
  for (std::int64_t i = 0; i < logits.elems(); ++i)
    shifted.set(i, std::round(logits[i] * 8) / 8 + shift);  // exact in f32
  for (std::int64_t i = 0; i < logits.elems(); ++i) logits.set(i, shifted[i] - shift);
  const auto losses = [&](Values& of) {
    return run(
        {Values::poison(DType::f32, 3), Values::poison(DType::f32, 3)}, [&](ExecContext& ctx, std::vector<Values>& o) {
          k().cross_entropy_forward(ctx, o[0].buffer(), o[1].buffer(), of.buffer(), targets.buffer(), size.classes);
        });
  };
  require_close(losses(shifted)[0], losses(logits)[0].list(), 1e-6);
}

TEST_CASE("cross entropy's gradient agrees with central differences and leaves masked columns zero") {
  const Size size = GENERATE(from_range(kSizes));
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  Values logits = logits_of(size), targets = targets_of(size), lse(DType::f32, size.rows),
         losses(DType::f32, size.rows);
  Values dloss = Values::of(DType::f32, {1.5});
  ExecContext ctx = make_context();
  k().cross_entropy_forward(ctx, losses.buffer(), lse.buffer(), logits.buffer(), targets.buffer(), size.classes);
  const auto out = run({Values::poison(dtype, logits.elems()), logits}, [&](ExecContext& c, std::vector<Values>& o) {
    k().cross_entropy_backward(c, o[0].buffer(), logits.buffer(), lse.buffer(), targets.buffer(), dloss.buffer(),
                               size.classes, 0.5f);
    k().cross_entropy_backward(c, o[1].buffer(), o[1].buffer(), lse.buffer(), targets.buffer(), dloss.buffer(),
                               size.classes, 0.5f);
  });
  for (std::int64_t r = 0; r < size.rows; r += 3) {
    const std::vector<double> row = row_of(logits, size, r);
    const auto target = targets.at<std::int32_t>(r);
    for (std::int64_t c = 0; c < size.stride; c += c < 8 || c >= size.classes ? 1 : 13) {
      const double expected =
          0.75 * central_difference(row, static_cast<std::size_t>(c),
                                    [&](const std::vector<double>& v) { return row_loss(v, target, size.classes); });
      INFO("row " << r << ", column " << c);
      REQUIRE(out[0][r * size.stride + c] == Approx(expected).epsilon(rounding(dtype)).margin(1e-6));
      REQUIRE(out[1][r * size.stride + c] == Approx(expected).margin(1e-6));
      if (c >= size.classes) REQUIRE(out[0][r * size.stride + c] == 0.0);
    }
  }
}

TEST_CASE("cross entropy in place has the losses and the gradients of the two kernels that it stands for") {
  if (k().cross_entropy_in_place == nullptr) return;  // of a CPU
  const Size size = GENERATE(from_range(kSizes), Size{3, 20, 12}, Size{2, 5000, 4999});
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const bool has_impossible = GENERATE(false, true);  // masked out by minus infinity
  Values logits(dtype, size.rows * size.stride), same(DType::f32, logits.elems()), wide = logits_of(size);
  for (std::int64_t i = 0; i < wide.elems(); ++i)
    logits.set(i, has_impossible && size.classes > 8 && i % size.stride == 1 ? -INFINITY : wide[i]);
  for (std::int64_t i = 0; i < wide.elems(); ++i) same.set(i, logits[i]);
  Values targets = targets_of(size), lse(DType::f32, size.rows), dloss = Values::of(DType::f32, {1.5});
  for (std::int64_t r = 0; has_impossible && r < size.rows; ++r)
    if (targets.at<std::int32_t>(r) == 1) targets.set(r, 0.0);
  const Values row = Values::poison(DType::f32, size.rows);
  const auto out = run({row, logits, row, same}, [&](ExecContext& c, std::vector<Values>& o) {
    k().cross_entropy_in_place(c, o[0].buffer(), o[1].buffer(), targets.buffer(), dloss.buffer(), size.classes, 0.5f);
    k().cross_entropy_forward(c, o[2].buffer(), lse.buffer(), o[3].buffer(), targets.buffer(), size.classes);
    k().cross_entropy_backward(c, o[3].buffer(), o[3].buffer(), lse.buffer(), targets.buffer(), dloss.buffer(),
                               size.classes, 0.5f);
  });
  for (std::int64_t r = 0; r < size.rows; ++r) REQUIRE(out[0][r] == Approx(out[2][r]).epsilon(2e-6).margin(2e-6));
  for (std::int64_t i = 0; i < logits.elems(); ++i) {
    INFO("row " << i / size.stride << ", column " << i % size.stride);
    REQUIRE(out[1][i] == Approx(out[3][i]).epsilon(rounding(dtype) + 5e-6).margin(1e-7));
    if (i % size.stride >= size.classes) REQUIRE(out[1][i] == 0.0);
  }
}

TEST_CASE("cross entropy in place of a row with a NaN is NaN wherever it lies") {
  if (k().cross_entropy_in_place == nullptr) return;  // of a CPU
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  for (const std::int64_t at : {0, 5, 1024, 2099}) {
    std::vector<double> row(2100, 1.0);
    row[static_cast<std::size_t>(at)] = std::numeric_limits<double>::quiet_NaN();
    Values target = Values::of(DType::i32, {7.0}), dloss = Values::of(DType::f32, {1.0});
    const auto out =
        run({Values::of(DType::f32, {0.0}), Values::of(dtype, row)}, [&](ExecContext& c, std::vector<Values>& o) {
          k().cross_entropy_in_place(c, o[0].buffer(), o[1].buffer(), target.buffer(), dloss.buffer(), 2100, 1.0f);
        });
    REQUIRE(std::isnan(out[0][0]));
  }
}

TEST_CASE("the gradients of one row sum to zero") {
  const Size size{4, 1024, 1000};
  Values logits = logits_of(size), targets = targets_of(size), lse(DType::f32, 4), losses(DType::f32, 4),
         dloss = Values::of(DType::f32, {1});
  ExecContext ctx = make_context();
  k().cross_entropy_forward(ctx, losses.buffer(), lse.buffer(), logits.buffer(), targets.buffer(), size.classes);
  k().cross_entropy_backward(ctx, logits.buffer(), logits.buffer(), lse.buffer(), targets.buffer(), dloss.buffer(),
                             size.classes, 1.0f);
  for (std::int64_t r = 0; r < size.rows; ++r) {
    const auto row = row_of(logits, size, r);
    REQUIRE(dot(row, std::vector<double>(row.size(), 1.0)) == Approx(0.0).margin(1e-6));
  }
}

TEST_CASE("a target outside the classes is refused by number", "[cpu]") {
  ExecContext ctx = make_context();
  Values logits(DType::f32, 8), targets = Values::of(DType::i32, {0, 3}), lse(DType::f32, 2), losses(DType::f32, 2);
  REQUIRE_THROWS_WITH(
      k().cross_entropy_forward(ctx, losses.buffer(), lse.buffer(), logits.buffer(), targets.buffer(), 3),
      Catch::Contains("target 1 is 3, expected [0, 3)"));
}

TEST_CASE("a sum is carried in double precision") {
  const std::int64_t n = GENERATE(1, 3, 17, 256, 100003);
  Values in = Values::random(DType::f32, n, 1, 1e3);
  in.set(0, 1e7);
  const auto out = run({Values::poison(DType::f32, 1)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().sum(ctx, o[0].buffer(), in.buffer(), 0.25f);
  });
  double expected = 0;
  for (std::int64_t i = 0; i < n; ++i) expected += in[i];
  REQUIRE(out[0][0] == static_cast<double>(static_cast<float>(0.25 * expected)));
}

}  // namespace zs::test::loss_test
