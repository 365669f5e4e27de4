// Layer norm and RMS norm, and what they add on their way.
#include "tests/kernels/testing.h"

namespace zs::test::norm_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

struct NormParameters {
  std::vector<double> gamma, beta;
};

std::vector<double> layer_norm(const std::vector<double>& x, const NormParameters& p, double eps) {
  const std::size_t width = p.gamma.size();
  std::vector<double> y(x.size());
  for (std::size_t first = 0; first < x.size(); first += width) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < width; ++i) mean += x[first + i] / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i)
      variance += (x[first + i] - mean) * (x[first + i] - mean) / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i)
      y[first + i] = (x[first + i] - mean) / std::sqrt(variance + eps) * p.gamma[i] + p.beta[i];
  }
  return y;
}

std::vector<double> rms_norm(const std::vector<double>& x, const std::vector<double>& gamma, double eps) {
  const std::size_t width = gamma.size();
  std::vector<double> y(x.size());
  for (std::size_t first = 0; first < x.size(); first += width) {
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[first + i] * x[first + i] / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i) y[first + i] = x[first + i] / std::sqrt(squares + eps) * gamma[i];
  }
  return y;
}

/// The operands of a norm, with mean and beta where it is layer norm, and its kernels with results that replace what is
/// in `o`.
struct NormCase {
  bool is_layer;
  Values gamma, beta;

  /// o: y, rstd, mean
  void forward(ExecContext& ctx, std::vector<Values>& o, const NormInput& in) {
    if (is_layer)
      return k().layer_norm_forward(ctx, o[0].buffer(), o[2].buffer(), o[1].buffer(), in, gamma.buffer(), beta.buffer(),
                                    1e-5f);
    k().rms_norm_forward(ctx, o[0].buffer(), o[1].buffer(), in, gamma.buffer(), 1e-5f);
  }
  /// o: dgamma, dbeta
  void backward(ExecContext& ctx, Buffer dx, std::vector<Values>& o, const NormGradient& in, Values& x,
                std::vector<Values>& forward) {
    if (is_layer)
      return k().layer_norm_backward(ctx, dx, o[0].buffer(), o[1].buffer(), in, x.buffer(), forward[2].buffer(),
                                     forward[1].buffer(), gamma.buffer(), 0.0f);
    k().rms_norm_backward(ctx, dx, o[0].buffer(), in, x.buffer(), forward[1].buffer(), gamma.buffer(), 0.0f);
  }
};

std::vector<RowSize> sum_sizes() {
  std::vector<RowSize> sizes = {{1, 1}, {3, 17}, {17, 3}, {100, 64}, {3, 1096}};
  if (device_under_test() == DeviceKind::cpu)
    sizes.insert(sizes.end(), {{301, 100}, {700, 1001}});  // the last is stored past the caches
  return sizes;
}

}  // namespace

TEST_CASE("a norm of a sum writes the bits of the sum, and of its norm, in one pass") {
  const DType dtype = GENERATE(DType::f32, DType::bf16), parameters = GENERATE(DType::f32, DType::bf16);
  const RowSize size = GENERATE(from_range(sum_sizes()));
  const std::int64_t n = size.rows * size.width;
  NormCase norm{GENERATE(true, false), Values::random(parameters, size.width, 3),
                Values::random(parameters, size.width, 4)};
  Values x = Values::random(dtype, n, 1, 2.0), residual = Values::random(dtype, n, 2);
  const Values row = Values::poison(DType::f32, size.rows), plane = Values::poison(dtype, n);
  const auto apart = run({plane, row, row, plane}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().add(ctx, o[3].buffer(), x.buffer(), residual.buffer());
    norm.forward(ctx, o, o[3].buffer());
  });
  const auto check = [&](const std::vector<Values>& together) {
    for (std::size_t i = 0; i < apart.size(); ++i) {
      INFO("output " << i);
      REQUIRE(together[i].same_bytes(apart[i]));
    }
  };
  check(run({plane, row, row, plane}, [&](ExecContext& ctx, std::vector<Values>& o) {
    norm.forward(ctx, o, {x.buffer(), residual.buffer(), o[3].buffer()});
  }));
  check(run({plane, row, row, x}, [&](ExecContext& ctx, std::vector<Values>& o) {
    norm.forward(ctx, o, {o[3].buffer(), residual.buffer(), o[3].buffer()});
  }));
  check(run({plane, row, row, residual}, [&](ExecContext& ctx, std::vector<Values>& o) {
    norm.forward(ctx, o, {x.buffer(), o[3].buffer(), o[3].buffer()});
  }));
}

TEST_CASE("a norm adds what goes past it to its own gradient, with the bits of a sum of both") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const RowSize size = GENERATE(from_range(sum_sizes()));
  const std::int64_t n = size.rows * size.width;
  NormCase norm{GENERATE(true, false), Values::random(dtype, size.width, 3), Values::random(dtype, size.width, 4)};
  Values x = Values::random(dtype, n, 1, 2.0), dy = Values::random(dtype, n, 5), skip = Values::random(dtype, n, 6);
  const Values column = Values::poison(DType::f32, size.width), plane = Values::poison(dtype, n);
  std::vector<Values> forward{Values(dtype, n), Values(DType::f32, size.rows), Values(DType::f32, size.rows)};
  ExecContext context = make_context();
  norm.forward(context, forward, x.buffer());
  const auto apart = run({column, column, plane}, [&](ExecContext& ctx, std::vector<Values>& o) {
    norm.backward(ctx, o[2].buffer(), o, dy.buffer(), x, forward);
    k().add(ctx, o[2].buffer(), skip.buffer(), o[2].buffer());
  });
  const auto check = [&](const std::vector<Values>& together) {
    for (std::size_t i = 0; i < apart.size(); ++i) {
      INFO("output " << i);
      REQUIRE(together[i].same_bytes(apart[i]));
    }
  };
  check(run({column, column, plane}, [&](ExecContext& ctx, std::vector<Values>& o) {
    norm.backward(ctx, o[2].buffer(), o, {dy.buffer(), skip.buffer()}, x, forward);
  }));
  check(run({column, column, skip}, [&](ExecContext& ctx, std::vector<Values>& o) {
    norm.backward(ctx, o[2].buffer(), o, {dy.buffer(), o[2].buffer()}, x, forward);
  }));
  check(run({column, column, dy}, [&](ExecContext& ctx, std::vector<Values>& o) {
    norm.backward(ctx, o[2].buffer(), o, {o[2].buffer(), skip.buffer()}, x, forward);
  }));
}

TEST_CASE("a norm refuses a sum and a gradient that are not as its input", "[cpu]") {
  ExecContext ctx = make_context();
  Values x(DType::f32, 12), short_one(DType::f32, 8), other(DType::bf16, 12), gamma(DType::f32, 4), rstd(DType::f32, 3);
  const auto forward = [&](const NormInput& in) {
    k().rms_norm_forward(ctx, x.buffer(), rstd.buffer(), in, gamma.buffer(), 1e-5f);
  };
  REQUIRE_THROWS_WITH(forward({x.buffer(), short_one.buffer(), x.buffer()}),
                      Catch::Contains("residual is 8 x f32, expected 12 x f32"));
  REQUIRE_THROWS_WITH(forward({x.buffer(), x.buffer(), other.buffer()}),
                      Catch::Contains("sum is 12 x bf16, expected 12 x f32"));
  REQUIRE_THROWS_WITH(k().rms_norm_backward(ctx, x.buffer(), gamma.buffer(), {x.buffer(), short_one.buffer()},
                                            x.buffer(), rstd.buffer(), gamma.buffer(), 0.0f),
                      Catch::Contains("skip is 8 x f32, expected 12 x f32"));
}

TEST_CASE("layer norm follows its formula") {
  const DType dtype = GENERATE(DType::f32, DType::bf16), parameters = GENERATE(DType::f32, DType::bf16);
  const RowSize size = GENERATE(from_range(kRowSizes));
  Values x = Values::random(dtype, size.rows * size.width, 1, 2.0), gamma = Values::random(parameters, size.width, 2);
  for (std::int64_t i = 0; i < x.elems(); ++i) x.set(i, x[i] + 10.0);  // a mean far from 0 must not cost digits
  Values beta = Values::random(GENERATE(DType::f32, DType::bf16), size.width, 3);
  const auto out = run(
      {Values::poison(dtype, x.elems()), Values::poison(DType::f32, size.rows), Values::poison(DType::f32, size.rows)},
      [&](ExecContext& ctx, std::vector<Values>& o) {
        k().layer_norm_forward(ctx, o[0].buffer(), o[1].buffer(), o[2].buffer(), x.buffer(), gamma.buffer(),
                               beta.buffer(), 1e-5f);
      });
  require_close(out[0], layer_norm(x.list(), {gamma.list(), beta.list()}, 1e-5),
                3e-5);  // |gamma| up to 4, x - mean cancels 3 bits
  for (std::int64_t r = 0; r < size.rows; ++r) {
    double mean = 0;
    for (std::int64_t c = 0; c < size.width; ++c) mean += x[r * size.width + c] / static_cast<double>(size.width);
    REQUIRE(out[1][r] == Approx(mean).epsilon(1e-6));
    REQUIRE(std::isfinite(out[2][r]));
  }
}

TEST_CASE("layer norm's gradients agree with central differences") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const float grad_beta = GENERATE(0.0f, 1.0f);
  const RowSize size = GENERATE(RowSize{3, 17}, RowSize{17, 3}, RowSize{2, 100}, RowSize{70, 5});
  Values x = Values::random(dtype, size.rows * size.width, 1, 2.0), gamma = Values::random(dtype, size.width, 2);
  Values beta = Values::random(dtype, size.width, 3), dy = Values::random(dtype, x.elems(), 4), y(dtype, x.elems());
  Values mean(DType::f32, size.rows), rstd(DType::f32, size.rows);
  ExecContext ctx = make_context();
  k().layer_norm_forward(ctx, y.buffer(), mean.buffer(), rstd.buffer(), x.buffer(), gamma.buffer(), beta.buffer(),
                         1e-5f);
  const Values before =
      grad_beta == 0.0f ? Values::poison(DType::f32, size.width) : Values::random(DType::f32, size.width, 5);
  const auto out = run({Values::poison(dtype, x.elems()), before, before}, [&](ExecContext& c, std::vector<Values>& o) {
    k().layer_norm_backward(c, o[0].buffer(), o[1].buffer(), o[2].buffer(), dy.buffer(), x.buffer(), mean.buffer(),
                            rstd.buffer(), gamma.buffer(), grad_beta);
  });
  const NormParameters p{gamma.list(), beta.list()};
  std::vector<double> dx, dgamma, dbeta;
  for (std::size_t i = 0; i < static_cast<std::size_t>(x.elems()); ++i)
    dx.push_back(central_difference(
        x.list(), i, [&](const std::vector<double>& v) { return dot(layer_norm(v, p, 1e-5), dy.list()); }));
  for (std::size_t i = 0; i < p.gamma.size(); ++i) {
    const double held = grad_beta == 0.0f ? 0.0 : before[static_cast<std::int64_t>(i)];
    dgamma.push_back(held + central_difference(p.gamma, i, [&](const std::vector<double>& v) {
                       return dot(layer_norm(x.list(), {v, p.beta}, 1e-5), dy.list());
                     }));
    dbeta.push_back(held + central_difference(p.beta, i, [&](const std::vector<double>& v) {
                      return dot(layer_norm(x.list(), {p.gamma, v}, 1e-5), dy.list());
                    }));
  }
  double steepest = 1.0;  // rstd is large where a short row is nearly constant, and the errors grow with it
  for (std::int64_t r = 0; r < size.rows; ++r) steepest = std::max(steepest, rstd[r]);
  require_close(out[0], dx, 2e-5 * steepest);
  require_close(out[1], dgamma, 2e-5 * steepest);
  require_close(out[2], dbeta, 2e-5);
}

TEST_CASE("layer norm's gradients of wide rows do not depend on the threads") {
  const std::int64_t rows = 400, width = 771;  // more than one block of rows, and more bytes than a core's cache holds
  Values x = Values::random(DType::f32, rows * width, 1), dy = Values::random(DType::f32, rows * width, 2);
  Values gamma = Values::random(DType::f32, width, 3), mean = Values::random(DType::f32, rows, 4),
         rstd = Values::random(DType::f32, rows, 5);
  const auto out = run({dy, Values::poison(DType::f32, width), Values::poison(DType::f32, width)},
                       [&](ExecContext& c, std::vector<Values>& o) {
                         k().layer_norm_backward(c, o[0].buffer(), o[1].buffer(), o[2].buffer(), o[0].buffer(),
                                                 x.buffer(), mean.buffer(), rstd.buffer(), gamma.buffer(), 0.0f);
                       });
  std::vector<double> dbeta(static_cast<std::size_t>(width), 0.0);
  for (std::int64_t i = 0; i < dy.elems(); ++i) dbeta[static_cast<std::size_t>(i % width)] += dy[i];
  require_close(out[2], dbeta, 3e-5);
}

TEST_CASE("norms and their gradients follow their formulas at every width") {
  // On GPUs rows of up to 1024, 1792 and 2048 elements have kernels of their own, and so have those that are no packs.
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const RowSize size = GENERATE(RowSize{70, 64}, RowSize{300, 8}, RowSize{33, 768}, RowSize{17, 1600}, RowSize{9, 2048},
                                RowSize{3, 2056}, RowSize{3, 2049});
  const bool is_layer = GENERATE(true, false);
  const std::int64_t n = size.rows * size.width;
  NormCase norm{is_layer, Values::random(dtype, size.width, 2), Values::random(dtype, size.width, 3)};
  Values x = Values::random(dtype, n, 1, 2.0), dy = Values::random(dtype, n, 4);
  std::vector<Values> forward{Values(dtype, n), Values(DType::f32, size.rows), Values(DType::f32, size.rows)};
  ExecContext ctx = make_context();
  norm.forward(ctx, forward, x.buffer());
  require_close(forward[0],
                is_layer ? layer_norm(x.list(), {norm.gamma.list(), norm.beta.list()}, 1e-5)
                         : rms_norm(x.list(), norm.gamma.list(), 1e-5),
                3e-5);
  // A norm of which one parameter is somebody else's has gradients of two dtypes.
  const Values dgamma_before = Values::poison(dtype, size.width), dbeta_before = Values::poison(DType::f32, size.width);
  const auto out =
      run({dgamma_before, dbeta_before, Values::poison(dtype, n)},
          [&](ExecContext& c, std::vector<Values>& o) { norm.backward(c, o[2].buffer(), o, dy.buffer(), x, forward); });
  const auto columns = static_cast<std::size_t>(size.width);
  std::vector<double> dx(static_cast<std::size_t>(n)), dgamma(columns), dbeta(columns);
  for (std::int64_t row = 0; row < size.rows; ++row) {
    const double mean = is_layer ? forward[2][row] : 0.0, rstd = forward[1][row],
                 width = static_cast<double>(size.width);
    const auto xhat = [&](std::int64_t c) { return (x[row * size.width + c] - mean) * rstd; };
    double mean_g = 0, mean_gx = 0;
    for (std::int64_t c = 0; c < size.width; ++c) {
      const double up = dy[row * size.width + c], g = up * norm.gamma[c];
      mean_g += is_layer ? g / width : 0.0;
      mean_gx += g * xhat(c) / width;
      dgamma[static_cast<std::size_t>(c)] += up * xhat(c);
      dbeta[static_cast<std::size_t>(c)] += up;
    }
    for (std::int64_t c = 0; c < size.width; ++c)
      dx[static_cast<std::size_t>(row * size.width + c)] =
          rstd * (dy[row * size.width + c] * norm.gamma[c] - mean_g - xhat(c) * mean_gx);
  }
  require_close(out[2], dx, 1e-4);
  require_close(out[0], dgamma, 1e-4);  // up to 300 terms of order 1 in f32
  if (is_layer) require_close(out[1], dbeta, 1e-4);
}

TEST_CASE("RMS norm follows its formula") {
  const DType dtype = GENERATE(DType::f32, DType::bf16), parameters = GENERATE(DType::f32, DType::bf16);
  const RowSize size = GENERATE(from_range(kRowSizes));
  Values x = Values::random(dtype, size.rows * size.width, 1, 2.0), gamma = Values::random(parameters, size.width, 2);
  const auto out = run({Values::poison(dtype, x.elems()), Values::poison(DType::f32, size.rows)},
                       [&](ExecContext& ctx, std::vector<Values>& o) {
                         k().rms_norm_forward(ctx, o[0].buffer(), o[1].buffer(), x.buffer(), gamma.buffer(), 1e-5f);
                       });
  require_close(out[0], rms_norm(x.list(), gamma.list(), 1e-5), 3e-6);  // |gamma| up to 4
  for (std::int64_t r = 0; r < size.rows; ++r) {
    double squares = 0;
    for (std::int64_t c = 0; c < size.width; ++c) squares += x[r * size.width + c] * x[r * size.width + c];
    REQUIRE(out[1][r] == Approx(1 / std::sqrt(squares / static_cast<double>(size.width) + 1e-5)).epsilon(1e-6));
  }
}

TEST_CASE("RMS norm's gradients agree with central differences") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const float grad_beta = GENERATE(0.0f, 1.0f);
  const RowSize size = GENERATE(RowSize{3, 17}, RowSize{17, 3}, RowSize{2, 100}, RowSize{70, 5});
  Values x = Values::random(dtype, size.rows * size.width, 1, 2.0), gamma = Values::random(dtype, size.width, 2);
  Values dy = Values::random(dtype, x.elems(), 4), y(dtype, x.elems()), rstd(DType::f32, size.rows);
  ExecContext ctx = make_context();
  k().rms_norm_forward(ctx, y.buffer(), rstd.buffer(), x.buffer(), gamma.buffer(), 1e-5f);
  const Values before =
      grad_beta == 0.0f ? Values::poison(DType::f32, size.width) : Values::random(DType::f32, size.width, 5);
  const auto out = run({Values::poison(dtype, x.elems()), before}, [&](ExecContext& c, std::vector<Values>& o) {
    k().rms_norm_backward(c, o[0].buffer(), o[1].buffer(), dy.buffer(), x.buffer(), rstd.buffer(), gamma.buffer(),
                          grad_beta);
  });
  const std::vector<double> gains = gamma.list();
  std::vector<double> dx, dgamma;
  for (std::size_t i = 0; i < static_cast<std::size_t>(x.elems()); ++i)
    dx.push_back(central_difference(
        x.list(), i, [&](const std::vector<double>& v) { return dot(rms_norm(v, gains, 1e-5), dy.list()); }));
  for (std::size_t i = 0; i < gains.size(); ++i) {
    const double held = grad_beta == 0.0f ? 0.0 : before[static_cast<std::int64_t>(i)];
    dgamma.push_back(held + central_difference(gains, i, [&](const std::vector<double>& v) {
                       return dot(rms_norm(x.list(), v, 1e-5), dy.list());
                     }));
  }
  double steepest = 1.0;  // as for layer norm
  for (std::int64_t r = 0; r < size.rows; ++r) steepest = std::max(steepest, rstd[r]);
  require_close(out[0], dx, 2e-5 * steepest);
  require_close(out[1], dgamma, 2e-5 * steepest);
}

TEST_CASE("RMS norm's gradients of wide rows do not depend on the threads, and are in place what they are apart") {
  const std::int64_t rows = 400, width = 771;  // as for layer norm
  Values x = Values::random(DType::f32, rows * width, 1), dy = Values::random(DType::f32, rows * width, 2);
  Values gamma = Values::random(DType::f32, width, 3), rstd = Values::random(DType::f32, rows, 5);
  const auto out = run({dy, Values::poison(DType::f32, width)}, [&](ExecContext& c, std::vector<Values>& o) {
    k().rms_norm_backward(c, o[0].buffer(), o[1].buffer(), o[0].buffer(), x.buffer(), rstd.buffer(), gamma.buffer(),
                          0.0f);
  });
  const auto apart = run({Values::poison(DType::f32, rows * width), Values::poison(DType::f32, width)},
                         [&](ExecContext& c, std::vector<Values>& o) {
                           k().rms_norm_backward(c, o[0].buffer(), o[1].buffer(), dy.buffer(), x.buffer(),
                                                 rstd.buffer(), gamma.buffer(), 0.0f);
                         });
  require_close(out[0], apart[0].list(), 1e-6);
  std::vector<double> dgamma(static_cast<std::size_t>(width), 0.0);
  for (std::int64_t i = 0; i < dy.elems(); ++i)
    dgamma[static_cast<std::size_t>(i % width)] += dy[i] * x[i] * rstd[i / width];
  require_close(out[1], dgamma, 1e-4);  // 400 terms of order 1 in f32
}

TEST_CASE("RMS norm with an offset has the bits of one whose weights are larger by it") {
  const DType dtype = GENERATE(DType::f32, DType::bf16), parameters = GENERATE(DType::f32, DType::bf16);
  const RowSize size = GENERATE(RowSize{3, 17}, RowSize{17, 8}, RowSize{70, 1096});
  Values x = Values::random(dtype, size.rows * size.width, 1, 2.0), dy = Values::random(dtype, x.elems(), 2);
  Values gamma = Values::random(parameters, size.width, 3), larger(DType::f32, size.width);
  for (std::int64_t i = 0; i < size.width; ++i)
    larger.set(i, static_cast<double>(static_cast<float>(gamma[i]) + 0.75f));
  std::vector<std::vector<Values>> of;
  for (const NormFactors& factors : {NormFactors(gamma.buffer(), 0.75f), NormFactors(larger.buffer())}) {
    of.push_back(run({Values::poison(dtype, x.elems()), Values::poison(DType::f32, size.rows),
                      Values::poison(dtype, x.elems()), Values::poison(DType::f32, size.width)},
                     [&](ExecContext& c, std::vector<Values>& o) {
                       k().rms_norm_forward(c, o[0].buffer(), o[1].buffer(), x.buffer(), factors, 1e-5f);
                       k().rms_norm_backward(c, o[2].buffer(), o[3].buffer(), dy.buffer(), x.buffer(), o[1].buffer(),
                                             factors, 0.0f);
                     }));
  }
  for (std::size_t i = 0; i < of[0].size(); ++i) CHECK(of[0][i].list() == of[1][i].list());
}

}  // namespace zs::test::norm_test
