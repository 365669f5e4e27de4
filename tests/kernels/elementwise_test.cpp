#include <array>
#include <bit>

#include "tests/kernels/testing.h"

namespace zs::test::elementwise_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }
const std::vector<std::int64_t> kSizes = {1, 3, 17, 64, 100, 100003};

/// Values with every kind of special case near the front.
std::vector<double> awkward(std::int64_t n) {
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<double> values = Values::random(DType::f32, n, 5, 4.0).list();
  const auto full_nan = static_cast<double>(std::bit_cast<float>(0x7fffffffu));  // which must not be rounded up to -0
  const std::array<double, 9> special = {0.0, -0.0, inf, -inf, std::nan(""), 1e-40, 3.3895e38, 1.00390625, full_nan};
  for (std::size_t i = 0; i < special.size() && i < values.size(); ++i) values[i] = special[i];
  return values;
}

double gelu(double x, GeluKind kind) {
  if (kind == GeluKind::erf) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

}  // namespace

TEST_CASE("zero and copy move every byte of any size") {
  const std::int64_t n = GENERATE(from_range(kSizes));
  Values in = Values::random(DType::bf16, n, 1);
  const auto out = run({Values::poison(DType::bf16, n), Values::poison(DType::f64, n)},
                       [&](ExecContext& ctx, std::vector<Values>& o) {
                         k().copy(ctx, o[0].buffer(), in.buffer());
                         k().zero(ctx, o[1].buffer());
                       });
  REQUIRE(out[0].same_bytes(in));
  REQUIRE(out[1].same_bytes(Values::of(DType::f64, std::vector<double>(static_cast<std::size_t>(n), 0.0))));
}

TEST_CASE("copy_rows copies rows between strides, and nothing in between") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t rows = GENERATE(0, 1, 2, 7), width = GENERATE(1, 3, 64), out_gap = GENERATE(0, 1, 5),
                     in_gap = GENERATE(0, 2);
  const std::int64_t out_stride = width + out_gap, in_stride = width + in_gap;
  const std::int64_t out_elems = rows == 0 ? 0 : (rows - 1) * out_stride + width,
                     in_elems = rows == 0 ? 0 : (rows - 1) * in_stride + width;
  Values in = Values::random(dtype, in_elems, 1), expected = Values::poison(dtype, out_elems);
  const auto out = run({expected}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().copy_rows(ctx, o[0].buffer(), in.buffer(), {rows, width, out_stride, in_stride});
  });
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < width; ++i) expected.set(r * out_stride + i, in[r * in_stride + i]);
  REQUIRE(out[0].same_bytes(expected));
}

TEST_CASE("copy_rows refuses rows that overlap or do not fill their buffers") {
  Values in = Values::random(DType::f32, 12, 1), out = Values::poison(DType::f32, 12);
  ExecContext ctx = make_context();
  CHECK_THROWS_AS(k().copy_rows(ctx, out.buffer(), in.buffer(), {3, 4, 3, 4}), Error);
  CHECK_THROWS_AS(k().copy_rows(ctx, out.buffer(), in.buffer(), {2, 4, 4, 4}), Error);
  CHECK_THROWS_AS(k().copy_rows(ctx, out.buffer(), in.buffer(), {4, 3, 3, 4}), Error);
}

TEST_CASE("results larger than a core's cache reach every element, wherever they start") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = 600011, first = GENERATE(0, 1, 5);  // elements behind a 16-byte boundary
  const auto part = [=](Values& whole) {
    Buffer buffer = whole.buffer();
    buffer.data = static_cast<std::byte*>(buffer.data) + first * size_of(dtype);
    buffer.elems = n;
    return buffer;
  };
  Values a = Values::random(dtype, n, 1), b = Values::random(dtype, n, 2);
  const Values before = Values::poison(dtype, n + 16);
  const auto out = run({before, before, before}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().add(ctx, part(o[0]), a.buffer(), b.buffer());
    k().copy(ctx, part(o[1]), a.buffer());
    k().zero(ctx, part(o[2]));
  });
  Values sum = before, copied = before, cleared = before;
  for (std::int64_t i = 0; i < n; ++i) {
    sum.set(first + i, static_cast<double>(static_cast<float>(a[i]) + static_cast<float>(b[i])));
    copied.set(first + i, a[i]);
    cleared.set(first + i, 0.0);
  }
  REQUIRE(out[0].same_bytes(sum));
  REQUIRE(out[1].same_bytes(copied));
  REQUIRE(out[2].same_bytes(cleared));
}

TEST_CASE("cast rounds to nearest even, keeps NaN and infinities, and widens exactly") {
  const std::int64_t n = GENERATE(from_range(kSizes));
  Values wide = Values::of(DType::f32, awkward(n));
  const auto out = run({Values::poison(DType::bf16, n), Values::poison(DType::f32, n)},
                       [&](ExecContext& ctx, std::vector<Values>& o) {
                         k().cast(ctx, o[0].buffer(), wide.buffer());
                         k().cast(ctx, o[1].buffer(), o[0].buffer());
                       });
  for (std::int64_t i = 0; i < n; ++i) {
    REQUIRE(out[0].at<BFloat16>(i).bits == BFloat16(wide.at<float>(i)).bits);
    REQUIRE((out[1][i] == out[0][i] || (std::isnan(out[1][i]) && std::isnan(wide[i]))));
  }
}

TEST_CASE("cast to bf16 breaks ties towards the even neighbour") {
  Values wide = Values::of(DType::f32, {1 + 0x1.0p-8, 1 + 0x3.0p-8, 1 + 0x1.01p-8, -1 - 0x3.0p-8});
  const auto out = run({Values::poison(DType::bf16, 4)},
                       [&](ExecContext& ctx, std::vector<Values>& o) { k().cast(ctx, o[0].buffer(), wide.buffer()); });
  REQUIRE(out[0].list() == std::vector<double>{1.0, 1 + 0x1.0p-6, 1 + 0x1.0p-7, -1 - 0x1.0p-6});
}

TEST_CASE("add, scale and accumulate equal one rounding of the exact result, also in place") {
  const std::int64_t n = GENERATE(from_range(kSizes));
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  Values a = Values::random(dtype, n, 1), b = Values::random(dtype, n, 2);
  const auto out = run({Values::poison(dtype, n), a, a}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().add(ctx, o[0].buffer(), a.buffer(), b.buffer());
    k().add(ctx, o[1].buffer(), o[1].buffer(), b.buffer());
    k().scale(ctx, o[2].buffer(), o[2].buffer(), 0.3f);
  });
  REQUIRE(out[0].same_bytes(out[1]));
  Values sum(dtype, n), scaled(dtype, n);
  for (std::int64_t i = 0; i < n; ++i) {
    sum.set(i, static_cast<double>(static_cast<float>(a[i]) + static_cast<float>(b[i])));
    scaled.set(i, static_cast<double>(static_cast<float>(a[i]) * 0.3f));
  }
  REQUIRE(out[0].same_bytes(sum));
  REQUIRE(out[2].same_bytes(scaled));
}

TEST_CASE("accumulate adds any mix of f32 and bf16") {
  const DType to = GENERATE(DType::f32, DType::bf16), from = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(from_range(kSizes));
  Values a = Values::random(to, n, 1), b = Values::random(from, n, 2);
  const auto out =
      run({a}, [&](ExecContext& ctx, std::vector<Values>& o) { k().accumulate(ctx, o[0].buffer(), b.buffer()); });
  Values expected(to, n);
  for (std::int64_t i = 0; i < n; ++i)
    expected.set(i, static_cast<double>(static_cast<float>(a[i]) + static_cast<float>(b[i])));
  REQUIRE(out[0].same_bytes(expected));
}

TEST_CASE("gelu follows its formula over the whole range") {
  const GeluKind kind = GENERATE(GeluKind::tanh, GeluKind::erf);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(from_range(kSizes));
  Values x = Values::random(dtype, n, 3, 3.0);
  if (n == 100) {
    for (std::int64_t i = 0; i < n; ++i) x.set(i, -30.0 + 0.6 * static_cast<double>(i));
    x.set(99, 1e30);
    x.set(98, std::nan(""));
  }
  const auto out = run({Values::poison(dtype, n)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().gelu_forward(ctx, o[0].buffer(), x.buffer(), kind);
  });
  std::vector<double> expected;
  for (std::int64_t i = 0; i < n; ++i) expected.push_back(gelu(x[i], kind));
  require_close(out[0], expected, 3e-7);  // a few f32 roundings of values near 1
}

TEST_CASE("gelu has the published values") {
  Values x = Values::of(DType::f32, {0, 1, -1, 2, -3});
  const auto out = run({Values::poison(DType::f32, 5), Values::poison(DType::f32, 5)},
                       [&](ExecContext& ctx, std::vector<Values>& o) {
                         k().gelu_forward(ctx, o[0].buffer(), x.buffer(), GeluKind::tanh);
                         k().gelu_forward(ctx, o[1].buffer(), x.buffer(), GeluKind::erf);
                       });
  require_close(out[0], {0, 0.8411919906, -0.1588080094, 1.9545976941, -0.0036373921}, 2e-7);
  require_close(out[1], {0, 0.8413447461, -0.1586552539, 1.9544997361, -0.0040496941}, 2e-7);
}

TEST_CASE("gelu's gradient agrees with central differences, also in place") {
  const GeluKind kind = GENERATE(GeluKind::tanh, GeluKind::erf);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(from_range(kSizes));
  Values x = Values::random(dtype, n, 3, 3.0), dy = Values::random(dtype, n, 4);
  if (n == 100) {
    for (std::int64_t i = 0; i < n; ++i) x.set(i, -30.0 + 0.6 * static_cast<double>(i));
    x.set(99, 1e30);
    x.set(98, -1e30);
  }
  const auto out = run({dy}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().gelu_backward(ctx, o[0].buffer(), o[0].buffer(), x.buffer(), kind);
  });
  std::vector<double> expected;
  for (std::int64_t i = 0; i < n; ++i)
    expected.push_back(dy[i] *
                       central_difference({x[i]}, 0, [&](const std::vector<double>& v) { return gelu(v[0], kind); }));
  require_close(out[0], expected, 5e-6);  // slopes near 1, each a few roundings off, times |dy| up to 5
}

namespace {

double silu(double a) { return a / (1 + std::exp(-a)); }

struct SwigluCase {
  std::int64_t rows, width;
};
/// Rows of a and b; where they are 100 wide, the first a's are far from 0.
Values swiglu_input(DType dtype, const SwigluCase& size) {
  Values x = Values::random(dtype, 2 * size.rows * size.width, 3, 3.0);
  if (size.width != 100) return x;
  for (std::int64_t i = 0; i < size.width; ++i) x.set(i, -120.0 + 2.4 * static_cast<double>(i));
  x.set(99, 1e30);
  x.set(0, -1e30);
  return x;
}

}  // namespace

TEST_CASE("swiglu is silu of a row's first half times the second, over the whole range") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const SwigluCase size =
      GENERATE(SwigluCase{1, 1}, SwigluCase{3, 100}, SwigluCase{7, 17}, SwigluCase{301, 1027}, SwigluCase{64, 512});
  Values x = swiglu_input(dtype, size);
  const auto out = run({Values::poison(dtype, size.rows * size.width)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().swiglu_forward(ctx, o[0].buffer(), x.buffer(), size.width);
  });
  std::vector<double> expected;
  for (std::int64_t i = 0; i < size.rows * size.width; ++i) {
    const std::int64_t at = i / size.width * 2 * size.width + i % size.width;
    const double a = std::max(x[at], -700.0);
    expected.push_back(silu(a) * x[at + size.width]);
  }
  require_close(out[0], expected,
                1e-5);  // a few f32 roundings, or 6e-6 of an exponential for bf16, of products up to 100
}

TEST_CASE("swiglu has the published values") {
  Values x = Values::of(DType::f32, {0, 1, -1, 2, -3, 1, 1, 1, 1, 2});
  const auto out = run({Values::poison(DType::f32, 5)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().swiglu_forward(ctx, o[0].buffer(), x.buffer(), 5);
  });
  require_close(out[0], {0, 0.7310585786, -0.2689414214, 1.7615941560, -0.2845552391}, 2e-7);
}

TEST_CASE("swiglu's gradients agree with central differences") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const SwigluCase size = GENERATE(SwigluCase{1, 1}, SwigluCase{3, 100}, SwigluCase{7, 17}, SwigluCase{64, 24});
  Values x = swiglu_input(dtype, size), dy = Values::random(dtype, size.rows * size.width, 4);
  if (size.width == 100) x.set(99, 30.0);  // where differences of 1e30 would be rounded away
  const auto out = run({Values::poison(dtype, x.elems())}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().swiglu_backward(ctx, o[0].buffer(), dy.buffer(), x.buffer(), size.width);
  });
  std::vector<double> expected(static_cast<std::size_t>(x.elems()));
  for (std::int64_t i = 0; i < size.rows * size.width; ++i) {
    const std::int64_t at = i / size.width * 2 * size.width + i % size.width;
    const double a = std::max(x[at], -700.0), b = x[at + size.width];
    expected[static_cast<std::size_t>(at)] =
        dy[i] * b * central_difference({a}, 0, [](const std::vector<double>& v) { return silu(v[0]); });
    expected[static_cast<std::size_t>(at + size.width)] = dy[i] * silu(a);
  }
  require_close(out[0], expected,
                1e-5 * (dtype == DType::bf16 ? 10 : 1));  // dy b up to 50, each slope 1e-7 off, 6e-6 for bf16
}

TEST_CASE("geglu is gelu of a row's first half times the second, and its gradients those of central differences") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const SwigluCase size = GENERATE(SwigluCase{1, 1}, SwigluCase{3, 100}, SwigluCase{7, 17}, SwigluCase{64, 512});
  const std::int64_t n = size.rows * size.width;
  Values x = swiglu_input(dtype, size), dy = Values::random(dtype, n, 4);
  if (size.width == 100) x.set(99, 30.0);
  const auto out =
      run({Values::poison(dtype, n), Values::poison(dtype, 2 * n)}, [&](ExecContext& ctx, std::vector<Values>& o) {
        k().geglu_forward(ctx, o[0].buffer(), x.buffer(), size.width);
        k().geglu_backward(ctx, o[1].buffer(), dy.buffer(), x.buffer(), size.width);
      });
  const auto gelu = [](double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  };
  std::vector<double> y, dx(static_cast<std::size_t>(2 * n));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t at = i / size.width * 2 * size.width + i % size.width;
    const double a = std::max(x[at], -700.0), b = x[at + size.width];
    y.push_back(gelu(a) * b);
    dx[static_cast<std::size_t>(at)] =
        dy[i] * b * central_difference({a}, 0, [&](const std::vector<double>& v) { return gelu(v[0]); });
    dx[static_cast<std::size_t>(at + size.width)] = dy[i] * gelu(a);
  }
  require_close(out[0], y, 3e-5);  // as swiglu, of an exponential of a cube
  require_close(out[1], dx, 3e-5 * (dtype == DType::bf16 ? 10 : 1));
}

TEST_CASE("a kernel refuses buffers of the wrong size or type") {
  ExecContext ctx = make_context();
  Values a(DType::f32, 4), b(DType::f32, 5), c(DType::i32, 4);
  REQUIRE_THROWS_AS(k().add(ctx, a.buffer(), a.buffer(), b.buffer()), Error);
  REQUIRE_THROWS_AS(k().cast(ctx, a.buffer(), c.buffer()), Error);
  REQUIRE_THROWS_AS(k().swiglu_forward(ctx, a.buffer(), b.buffer(), 2), Error);
  Buffer elsewhere = a.buffer();
  elsewhere.device = DeviceKind::meta;
  REQUIRE_THROWS_AS(k().scale(ctx, elsewhere, a.buffer(), 1.0f), Error);
}

}  // namespace zs::test::elementwise_test
