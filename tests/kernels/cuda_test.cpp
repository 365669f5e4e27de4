#include "tests/kernels/testing.h"

/// What the CUDA kernels have and the CPU's have not.
namespace zs::test::cuda_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

/// The `elems` elements that begin `skipped` elements behind the buffer's start.
Buffer part(Values& values, std::int64_t skipped, std::int64_t elems) {
  Buffer buffer = values.buffer();
  buffer.data = static_cast<std::byte*>(buffer.data) + skipped * size_of(values.dtype());
  buffer.elems = elems;
  return buffer;
}

/// What lies there, in memory of its own.
Values copied(ExecContext& ctx, const Buffer& from) {
  Values values(from.dtype, from.elems);
  k().copy(ctx, values.buffer(), from);
  return values;
}

void check_same_bytes(const std::vector<Values>& aligned, const std::vector<Values>& odd) {
  REQUIRE(aligned.size() == odd.size());
  for (std::size_t i = 0; i < aligned.size(); ++i) {
    INFO("output " << i);
    CHECK(aligned[i].same_bytes(odd[i]));
  }
}

}  // namespace

TEST_CASE("a kernel refuses memory of the host, before it is launched") {
  std::vector<float> floats(8);
  const Buffer host{floats.data(), 8, DType::f32, DeviceKind::cpu};
  ExecContext ctx = make_context();
  CHECK_THROWS_WITH(k().scale(ctx, host, host, 2), Catch::Contains("a CUDA kernel got a buffer of device cpu"));
}

TEST_CASE("packs and single elements give the same bits in every map") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = 1003;
  Values a = Values::random(dtype, n + 1, 1), b = Values::random(dtype, n + 1, 2);
  const auto all = [&](std::int64_t skipped) {
    std::vector<Values> out(6, Values::poison(dtype, n + 1));
    ExecContext ctx = make_context();
    Values shifted_a = Values::poison(dtype, n + 1), shifted_b = shifted_a;
    k().copy(ctx, part(shifted_a, skipped, n), part(a, 0, n));
    k().copy(ctx, part(shifted_b, skipped, n), part(b, 0, n));
    const Buffer x = part(shifted_a, skipped, n), y = part(shifted_b, skipped, n);
    const auto at = [&](std::size_t i) { return part(out[i], skipped, n); };
    k().add(ctx, at(0), x, y);
    k().scale(ctx, at(1), x, 0.3f);
    k().gelu_forward(ctx, at(2), x, GeluKind::tanh);
    k().gelu_backward(ctx, at(3), x, y, GeluKind::erf);
    k().cast(ctx, at(4), x);
    k().copy(ctx, at(5), x);
    k().accumulate(ctx, at(5), y);
    std::vector<Values> results;
    for (std::size_t i = 0; i < out.size(); ++i) results.push_back(copied(ctx, at(i)));
    return results;
  };
  check_same_bytes(all(0), all(1));
}

TEST_CASE("packs and single elements give the same bits in every kernel of rows") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t rows = 5, width = 48, n = rows * width;  // 48: halves of 24, and heads of 16, are whole packs
  Values x = Values::random(dtype, n, 1), dy = Values::random(dtype, n, 2),
         gamma = Values::random(DType::f32, width, 3);
  Values ids = Values::of(DType::i32, {1, 0, 1, 1, 2}), logits = Values::random(DType::f32, n, 4),
         dloss = Values::of(DType::f32, {1});
  const auto all = [&](std::int64_t skipped) {
    ExecContext ctx = make_context();
    Values moved_x(dtype, n + 1), moved_dy(dtype, n + 1), moved_logits(DType::f32, n + 1), mean(DType::f32, rows),
        rstd = mean, lse = mean;
    k().copy(ctx, part(moved_x, skipped, n), x.buffer());
    k().copy(ctx, part(moved_dy, skipped, n), dy.buffer());
    k().copy(ctx, part(moved_logits, skipped, n), logits.buffer());
    std::vector<Values> out(11, Values::poison(dtype, n + 1));
    const auto at = [&](std::size_t i) { return part(out[i], skipped, n); };
    Values dgamma(DType::f32, width), dbeta = dgamma, dbias = dgamma, dgain = dgamma, dtable(DType::f32, 3 * width),
                                      losses = lse;
    k().layer_norm_forward(ctx, at(0), mean.buffer(), rstd.buffer(), part(moved_x, skipped, n), gamma.buffer(),
                           gamma.buffer(), 1e-5f);
    k().layer_norm_backward(ctx, at(1), dgamma.buffer(), dbeta.buffer(), part(moved_dy, skipped, n),
                            part(moved_x, skipped, n), mean.buffer(), rstd.buffer(), gamma.buffer(), 0.0f);
    k().bias_backward(ctx, dbias.buffer(), part(moved_dy, skipped, n), 0.0f);
    k().embedding_backward(ctx, dtable.buffer(), ids.buffer(), part(moved_dy, skipped, n), width, 0.0f, -1);
    k().cross_entropy_forward(ctx, losses.buffer(), lse.buffer(), part(moved_logits, skipped, n), ids.buffer(), 20);
    k().cross_entropy_backward(ctx, at(2), part(moved_logits, skipped, n), lse.buffer(), ids.buffer(), dloss.buffer(),
                               20, 1.0f);
    const AttentionDims heads{1, rows, 1, width / 3};
    k().rotary(ctx, at(3), part(moved_x, skipped, n), heads, {});
    Buffer gated = at(4);
    gated.elems = n / 2;
    k().swiglu_forward(ctx, gated, part(moved_x, skipped, n), width / 2);
    k().swiglu_backward(ctx, at(5), part(moved_dy, skipped, n / 2), part(moved_x, skipped, n), width / 2);
    k().rms_norm_forward(ctx, at(6), rstd.buffer(), part(moved_x, skipped, n), gamma.buffer(), 1e-5f);
    k().rms_norm_backward(ctx, at(7), dgain.buffer(), part(moved_dy, skipped, n), part(moved_x, skipped, n),
                          rstd.buffer(), gamma.buffer(), 0.0f);
    const NormInput sum{part(moved_x, skipped, n), part(moved_dy, skipped, n), at(9)};
    k().layer_norm_forward(ctx, at(8), mean.buffer(), rstd.buffer(), sum, gamma.buffer(), gamma.buffer(), 1e-5f);
    k().layer_norm_backward(ctx, at(10), dgamma.buffer(), dbeta.buffer(),
                            {part(moved_dy, skipped, n), part(moved_x, skipped, n)}, part(moved_x, skipped, n),
                            mean.buffer(), rstd.buffer(), gamma.buffer(), 0.0f);
    std::vector<Values> results = {mean, rstd, dgamma, dbeta, dbias, dgain, dtable, losses};
    for (std::size_t i = 0; i < out.size(); ++i) results.push_back(copied(ctx, at(i)));
    return results;
  };
  check_same_bytes(all(0), all(1));
}

TEST_CASE("gradients of norms and biases have the same bits whether rows are held or read again") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t width = GENERATE(48, 1104), rows = width == 48 ? 75 : 35, n = rows * width;
  Values x = Values::random(dtype, n, 1), dy = Values::random(dtype, n, 2), gamma = Values::random(dtype, width, 3),
         mean = Values::random(DType::f32, rows, 4), rstd = Values::random(DType::f32, rows, 5);
  const auto all = [&](std::int64_t skipped) {
    ExecContext ctx = make_context();
    Values moved_x(dtype, n + 1), moved_dy(dtype, n + 1), moved_gamma(dtype, width + 1);
    k().copy(ctx, part(moved_x, skipped, n), x.buffer());
    k().copy(ctx, part(moved_dy, skipped, n), dy.buffer());
    k().copy(ctx, part(moved_gamma, skipped, width), gamma.buffer());
    Values layer(dtype, n + 1), rms(dtype, n + 1);
    std::vector<Values> sums(4, Values(DType::f32, width));
    k().layer_norm_backward(ctx, part(layer, skipped, n), sums[0].buffer(), sums[1].buffer(),
                            part(moved_dy, skipped, n), part(moved_x, skipped, n), mean.buffer(), rstd.buffer(),
                            part(moved_gamma, skipped, width), 0.0f);
    k().rms_norm_backward(ctx, part(rms, skipped, n), sums[2].buffer(), part(moved_dy, skipped, n),
                          part(moved_x, skipped, n), rstd.buffer(), part(moved_gamma, skipped, width), 0.0f);
    k().bias_backward(ctx, sums[3].buffer(), part(moved_dy, skipped, n), 0.0f);
    sums.push_back(copied(ctx, part(layer, skipped, n)));
    sums.push_back(copied(ctx, part(rms, skipped, n)));
    return sums;
  };
  check_same_bytes(all(0), all(1));
}

TEST_CASE("sums do not depend on where their elements begin") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(5, 1003, 40007);
  Values in = Values::random(dtype, n, 1, 10.0), odd = Values::poison(dtype, n + 1);
  ExecContext ctx = make_context();
  k().copy(ctx, part(odd, 1, n), in.buffer());
  Values first = Values::of(DType::f64, {0.0}), second = first;
  k().squared_norm(ctx, first.buffer(), in.buffer());
  k().squared_norm(ctx, second.buffer(), part(odd, 1, n));
  CHECK(first.same_bytes(second));
}

TEST_CASE("sums of more parts than a block has threads count every part") {
  const std::int64_t n = 8192 * 300 + 5;
  Values in(DType::f32, n);
  for (std::int64_t i = 0; i < n; ++i) in.set(i, 2.0);
  ExecContext ctx = make_context();
  Values squares = Values::of(DType::f64, {0.0}), total = Values::of(DType::f32, {0.0});
  k().squared_norm(ctx, squares.buffer(), in.buffer());
  k().sum(ctx, total.buffer(), in.buffer(), 0.5f);
  CHECK(squares[0] == 4.0 * static_cast<double>(n));
  CHECK(total[0] == static_cast<double>(n));
}

TEST_CASE("rows of any unit are copied whole: 1, 2, 4, 8 and 16 bytes at a time") {
  const std::int64_t run = GENERATE(1, 2, 4, 8, 16, 48), gap = GENERATE(0, 1, 16), rows = 3;
  const std::int64_t stride = run + gap, elems = (rows - 1) * stride + run;
  const auto bytes = [](TestVector<std::uint8_t>& values) {
    return Buffer{values.data(), static_cast<std::int64_t>(values.size()), DType::u8, DeviceKind::cuda};
  };
  TestVector<std::uint8_t> in(static_cast<std::size_t>(rows * run)), out(static_cast<std::size_t>(elems), 0xee),
      expected = out;
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint8_t>(i);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < run; ++i)
      expected[static_cast<std::size_t>(r * stride + i)] = in[static_cast<std::size_t>(r * run + i)];
  ExecContext ctx = make_context();
  k().copy_rows(ctx, bytes(out), bytes(in), {rows, run, stride, run});
  CHECK(out == expected);
}

namespace {

/// As the CPU's kernels want it.
Buffer here(Values& values) {
  Buffer buffer = values.buffer();
  buffer.device = DeviceKind::cpu;
  return buffer;
}

}  // namespace

TEST_CASE("a stochastic cast gives the same bits as the CPU's, from any address") {
  const std::int64_t n = 1003, skipped = GENERATE(0, 1);
  const StochasticRounding rounding =
      GENERATE(StochasticRounding{77, std::int64_t{5} << 33, 2000, 0}, StochasticRounding{77, 3, 17, 100});
  Values in = Values::random(DType::f32, n, 1), out = Values::poison(DType::bf16, n + 1),
         on_cpu = Values::poison(DType::bf16, n);
  ExecContext ctx = make_context(), cpu_ctx(1, nullptr);
  k().stochastic_cast(ctx, part(out, skipped, n), in.buffer(), rounding);
  cpu_kernels().stochastic_cast(cpu_ctx, here(on_cpu), here(in), rounding);
  CHECK(copied(ctx, part(out, skipped, n)).same_bytes(on_cpu));
}

TEST_CASE("rotary positions are the same bits as the CPU's") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d{2, 33, 4, GENERATE(6, 64), 2};
  Values qkv = Values::random(dtype, d.batch * d.time * qkv_width_of(d), 1), out = qkv, on_cpu = qkv;
  ExecContext ctx = make_context(), cpu_ctx(1, nullptr);
  const RotaryOptions options{.base = 500000, .scaling = {.factor = GENERATE(1.0, 8.0), .context = 20}};
  k().rotary(ctx, out.buffer(), qkv.buffer(), d, options);
  cpu_kernels().rotary(cpu_ctx, here(on_cpu), here(qkv), d, options);
  CHECK(out.same_bytes(on_cpu));
}

}  // namespace zs::test::cuda_test
