// The general ops, on the CPU and on an emulated GPU, against double precision; ops of a user's own beside them.
#include "tests/tensor/general_ops.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "runtime/tensor/elementwise.h"
#include "runtime/tensor/host_view.h"
#include "runtime/tensor/recompute.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/message_of.h"

namespace zs::test::general_ops_test {
namespace {

using Floats = std::vector<float>;
using Ids = std::vector<std::int32_t>;
using Tensors = std::vector<Tensor>;
using Catch::Matchers::Contains;

struct Cpu {
  std::unique_ptr<Device> device = Device::create(DeviceKind::cpu, {});
  Context context{*device};

  Tensor tensor(const Shape& shape, const Floats& values, DType dtype = DType::f32) {
    return Tensor::from_host(context, shape, values, dtype);
  }
  Tensor leaf(const Shape& shape, const Floats& values) {
    Tensor x = tensor(shape, values);
    x.set_requires_grad();
    return x;
  }
};

/// A GPU on which everything is done when it is enqueued.
struct Gpu {
  EmulatedDriver driver{{.is_immediate = true, .kernels = emulated_kernels()}};
  EmulatedCublas cublas{driver};
  CudaDevice device{patient(), {driver.table(), cublas.table()}};
};

std::vector<std::int32_t> integers(const Tensor& x) {
  const HostView view(x.context(), x.context().stream(), x.buffer());
  return {view.as<std::int32_t>(), view.as<std::int32_t>() + x.numel()};
}

}  // namespace

TEST_CASE("I8: the gradients of the general ops agree with central differences") {
  for (const auto& [name, op] : general_ops()) {
    INFO(name);
    check_gradients(op, kF32);
    check_gradients(op, kBf16);
  }
}

TEST_CASE("I8: the gradients of the general ops agree with central differences on a GPU") {
  Gpu gpu;
  for (const auto& [name, op] : general_ops()) {
    INFO(name);
    check_gradients(gpu.device, op, kF32);
    check_gradients(gpu.device, op, kBf16);
  }
}

TEST_CASE("I8: a parameter as a tensor has its gradient") {
  check_gradients({{normal({5, 7}, "x")},
                   {normal({7}, "scale")},
                   [](Context& context, const Tensors& x, const std::vector<Parameter*>& p) {
                     const Tensor scale = as_tensor(context, *p[0]);
                     return x[0] * scale + scale;
                   },
                   [](const std::vector<Values>& a) {
                     Values y;
                     for (std::size_t i = 0; i < a[0].size(); ++i) y.push_back((a[0][i] + 1) * a[1][i % 7]);
                     return y;
                   }},
                  kF32);
}

TEST_CASE("masks are 1 and 0, of numbers of any dtype, and nothing flows back through them") {
  Cpu cpu;
  const Tensor x = cpu.leaf({4}, {-1, 0, 2, 3}), ids = Tensor::from_host(cpu.context, {4}, Ids{7, 0, 2, 7});
  CHECK(gt(x, 0.0f).to_host() == Floats{0, 0, 1, 1});
  CHECK(lt(x, cpu.tensor({1}, {2})).to_host() == Floats{1, 1, 0, 0});
  CHECK(eq(ids, 7.0f).to_host() == Floats{1, 0, 0, 1});
  CHECK(eq(ids, 7.0f).dtype() == DType::f32);
  CHECK_FALSE(gt(x, 0.0f).requires_grad());
  CHECK(where(ids, x, 9.0f).to_host() == Floats{-1, 9, 2, 3});
}

TEST_CASE("argmax gives the first of the largest, and of NaN") {
  Cpu cpu;
  const float nan = std::nanf(""), least = -INFINITY;
  const Tensor x = cpu.tensor({4, 3}, {1, 5, 5, nan, 7, nan, least, least, least, -3, -2, -9});
  CHECK(integers(argmax(x, 1)) == Ids{1, 0, 0, 1});
  CHECK(integers(argmax(x, 0)) == Ids{1, 1, 1});
  const Floats largest = max(x, {1}).to_host();
  CHECK(largest[0] == 5);
  CHECK(std::isnan(largest[1]));
  CHECK(largest[2] == least);
}

TEST_CASE("equal largest elements share the gradient") {
  Cpu cpu;
  const Tensor x = cpu.leaf({2, 2}, {4, 4, 1, 3});
  backward(sum(max(x, {1})));
  CHECK(x.grad().to_host() == Floats{0.5f, 0.5f, 0, 1});
}

TEST_CASE("integers are moved as they are") {
  Cpu cpu;
  const Ids ids = {1 << 30, -1, (1 << 24) + 1, 5, 2'000'000'011, 7};
  const Tensor x = Tensor::from_host(cpu.context, {2, 3}, ids);
  CHECK(integers(transpose(x, 0, 1)) == Ids{ids[0], ids[3], ids[1], ids[4], ids[2], ids[5]});
  CHECK(integers(concat({x, slice(x, 1, 2, 1)}, 1)) ==
        Ids{ids[0], ids[1], ids[2], ids[2], ids[3], ids[4], ids[5], ids[5]});
  CHECK(integers(index_select(x, 0, Tensor::from_host(cpu.context, {1}, Ids{1}))) == Ids{ids[3], ids[4], ids[5]});
}

TEST_CASE("ops of no elements give none, and gradients of zeros") {
  Cpu cpu;
  const Tensor x = cpu.leaf({0, 3}, {}), row = cpu.leaf({3}, {1, 2, 3});
  const Tensor weight = cpu.leaf({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor y = matmul(softmax(transpose(transpose(x * row, 0, 1), 0, 1)), weight);
  CHECK(y.shape() == Shape{0, 2});
  backward(sum(concat({y, y}, 0)));
  CHECK(row.grad().to_host() == Floats{0, 0, 0});
  CHECK(weight.grad().to_host() == Floats(6, 0.0f));
  CHECK(mean(x).to_host() == Floats{0});
  CHECK(cross_entropy(x, Tensor::from_host(cpu.context, {0}, Ids{})).to_host() == Floats{0});
}

TEST_CASE("where every target is ignored, the loss and its gradient are 0") {
  Cpu cpu;
  const Tensor logits = cpu.leaf({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor loss = cross_entropy(logits, Tensor::from_host(cpu.context, {2}, Ids{-1, -1}), {.ignored = -1});
  CHECK(loss.to_host() == Floats{0});
  backward(loss);
  CHECK(logits.grad().to_host() == Floats(6, 0.0f));
}

TEST_CASE("softmax stays finite beside large and infinite elements") {
  Cpu cpu;
  CHECK(softmax(cpu.tensor({3}, {1e4f, 1e4f, -INFINITY})).to_host() == Floats{0.5f, 0.5f, 0});
  CHECK(exp(cpu.tensor({2}, {88.5f, 100})).to_host()[0] > 2e38f);
}

namespace {

constexpr RandomKey kKey{.seed = 3, .step = 7, .first_sample = 0, .place = 2};

RandomKey key_of(std::uint64_t seed, std::int64_t step, std::int64_t first_sample, std::uint64_t place) {
  return {.seed = seed, .step = step, .first_sample = first_sample, .place = place};
}

}  // namespace

TEST_CASE("dropout drops as many as it should, and scales what it keeps and its gradient alike") {
  const float probability = GENERATE(0.1f, 0.5f, 0.9f);
  Cpu cpu;
  const std::int64_t n = 100'000;
  const Tensor x = cpu.leaf({100, n / 100}, Floats(static_cast<std::size_t>(n), 2.0f));
  const Tensor y = dropout(x, probability, kKey);
  backward(sum(y));
  const Floats values = y.to_host(), grads = x.grad().to_host();
  std::int64_t kept = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    kept += values[i] != 0;
    REQUIRE((values[i] == 0 || values[i] == Approx(2 / (1 - probability))));
    REQUIRE(grads[i] == values[i] / 2);
  }
  const double expected = n * (1.0 - static_cast<double>(probability));
  CHECK(std::abs(static_cast<double>(kept) - expected) < 5 * std::sqrt(expected * static_cast<double>(probability)));
}

TEST_CASE("dropout of a sample is the same in any batch, and another for another seed, step, sample and place") {
  Cpu cpu;
  const Floats ones(64, 1.0f);
  const Tensor whole = cpu.tensor({4, 16}, ones), half = cpu.tensor({2, 16}, Floats(32, 1.0f));
  const Floats all = dropout(whole, 0.5f, kKey).to_host();
  const Floats second = dropout(half, 0.5f, key_of(3, 7, 2, 2)).to_host();
  CHECK(Floats(all.begin() + 32, all.end()) == second);
  for (const RandomKey& other : {key_of(4, 7, 0, 2), key_of(3, 8, 0, 2), key_of(3, 7, 4, 2), key_of(3, 7, 0, 3)})
    CHECK(dropout(whole, 0.5f, other).to_host() != all);
  Gpu gpu;
  Context on_gpu(gpu.device);
  CHECK(dropout(Tensor::from_host(on_gpu, {4, 16}, ones), 0.5f, kKey).to_host() == all);
}

TEST_CASE("dropout drops the same elements when its function is computed again") {
  Cpu cpu;
  const Floats values = to_floats(normal({6, 8}, "x").values);
  const auto body = [](const Tensors& in) { return sum(tanh(dropout(in[0], 0.3f, kKey)) * in[0]); };
  const Tensor plain = cpu.leaf({6, 8}, values), again = cpu.leaf({6, 8}, values);
  backward(body({plain}));
  backward(recompute({again}, body));
  CHECK(plain.grad().to_host() == again.grad().to_host());
}

TEST_CASE("I8: a user's elementwise op takes five lines, in f32 and bf16") {
  const auto softplus = [](const Tensor& x) {
    return elementwise(
        "softplus", x, [](float v) { return std::log1p(std::exp(v)); }, [](float v) { return 1 / (1 + std::exp(-v)); });
  };
  const OpUnderTest op{{normal({3, 41}, "x")},
                       {},
                       [=](Context&, const Tensors& x, const std::vector<Parameter*>&) { return softplus(x[0]); },
                       [](const std::vector<Values>& a) {
                         Values y;
                         for (const double x : a[0]) y.push_back(std::log1p(std::exp(x)));
                         return y;
                       }};
  check_gradients(op, kF32);
  check_gradients(op, kBf16);
  check_gradients({{normal({3, 41}, "x")},
                   {},
                   [](Context&, const Tensors& x, const std::vector<Parameter*>&) {
                     return elementwise(
                         "my_exp", x[0], [](float v) { return std::exp(v); }, [](float, float y) { return y; });
                   },
                   [](const std::vector<Values>& a) {
                     Values y;
                     for (const double x : a[0]) y.push_back(std::exp(x));
                     return y;
                   }},
                  kF32);
  Gpu gpu;
  Context context(gpu.device);
  CHECK_THAT(coded_message_of([&] { softplus(Tensor::zeros(context, {3}, DType::f32)); }),
             Contains("64: ") && Contains("op softplus") && Contains("nvcc"));
}

TEST_CASE("I8: an op of several outputs has the gradients of all that are used") {
  const bool uses_both = GENERATE(true, false);
  // h := a + b, d := a - b, as one op
  const auto sum_and_difference = [](const Tensor& a, const Tensor& b) {
    const NoGradGuard guard(a.context());
    return Tensors{add(a, b), sub(a, b)};
  };
  const OpUnderTest op{{normal({3, 4}, "a"), normal({3, 4}, "b")},
                       {},
                       [=](Context&, const Tensors& x, const std::vector<Parameter*>&) {
                         Tensors outputs = sum_and_difference(x[0], x[1]);
                         record_outputs(outputs, "sum_and_difference", x, {},
                                        [=](const Tensors& dy) { return sum_and_difference(dy[0], dy[1]); });
                         return uses_both ? outputs[0] * outputs[1] : outputs[1] * outputs[1];
                       },
                       [=](const std::vector<Values>& v) {
                         Values y;
                         for (std::size_t i = 0; i < v[0].size(); ++i) {
                           const double difference = v[0][i] - v[1][i];
                           y.push_back((uses_both ? v[0][i] + v[1][i] : difference) * difference);
                         }
                         return y;
                       }};
  check_gradients(op, kF32);
}

TEST_CASE("a hook sees the gradient of its tensor, and may give another") {
  Cpu cpu;
  const Tensor x = cpu.leaf({3}, {1, 2, 3});
  Floats seen;
  Tensor y = on_gradient(x, [&](const Tensor& dy) {
    seen = dy.to_host();
    return Tensor{};
  });
  y = on_gradient(y, [](const Tensor& dy) { return dy * -2.0f; });
  backward(sum(y * y));
  CHECK(seen == Floats{-4, -8, -12});
  CHECK(x.grad().to_host() == seen);
}

TEST_CASE("arguments of general ops that do not fit are one error, which names the op") {
  Cpu cpu;
  const Tensor x = cpu.tensor({4, 3}, Floats(12, 1.0f)), ids = Tensor::from_host(cpu.context, {2}, Ids{0, 1});
  const auto refuses = [](const std::function<void()>& body, const char* op, const char* what) {
    CHECK_THAT(coded_message_of(body), Contains("64: ") && Contains(op) && Contains(what));
  };
  refuses([&] { x + cpu.tensor({4}, Floats(4, 1.0f)); }, "op add", "f32 (4, 3) and f32 (4)");
  refuses([&] { x* cast(x, DType::bf16); }, "op mul", "cast");
  refuses([&] { exp(ids); }, "op exp", "i32 (2)");
  refuses([&] { sum(x, {2}); }, "op sum", "dim 2 of (4, 3)");
  refuses([&] { mean(x, {0, 0}); }, "op mean", "twice");
  refuses([&] { matmul(x, x); }, "op matmul", "f32 (4, 3) and f32 (4, 3)");
  refuses([&] { slice(x, 1, 2, 2); }, "op slice", "dim 1");
  refuses([&] { concat({x, cpu.tensor({3, 4}, Floats(12, 1.0f))}, 0); }, "op concat", "f32 (3, 4)");
  refuses([&] { permute(x, {0, 0}); }, "op permute", "each dim once");
  refuses([&] { split(x, 1, {1, 1}); }, "op split", "add up");
  refuses([&] { index_select(x, 0, x); }, "op index_select", "i32");
  refuses([&] { gather(x, 0, ids); }, "op gather", "i32 (2)");
  refuses([&] { expand(x, {4, 6}); }, "op expand", "(4, 6)");
  refuses([&] { unfold(x, {.height = 1, .width = 1}); }, "op unfold", "height");
  refuses([&] { cross_entropy(x, ids); }, "op cross_entropy", "2 targets");
  refuses([&] { clamp(x, 1, 0); }, "op clamp", "between 1 and 0");
  refuses([&] { dropout(x, 1, kKey); }, "op dropout", "probability 1");
  refuses([&] { max(cpu.tensor({0}, {})); }, "op max", "no elements");
  refuses([&] { where(cpu.tensor({2}, Floats(2, 1.0f)), x, x); }, "op where", "mask");
}

}  // namespace zs::test::general_ops_test
