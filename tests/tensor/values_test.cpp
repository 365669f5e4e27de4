// Tensors made of numbers and read as numbers, integers, and what ops made of others refuse.
#include "runtime/tensor/values.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <set>

#include "runtime/tensor/autograd.h"
#include "runtime/tensor/convolution.h"
#include "runtime/tensor/dot_product_attention.h"
#include "runtime/tensor/einsum.h"
#include "runtime/tensor/integers.h"
#include "runtime/tensor/losses.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/ordering.h"
#include "runtime/tensor/pointwise.h"
#include "runtime/tensor/scatter.h"
#include "runtime/tensor/statistics.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/message_of.h"

namespace zs::test::values_test {
namespace {

using Floats = std::vector<float>;
using Ids = std::vector<std::int32_t>;
using Catch::Matchers::Contains;

/// A CPU, or an emulated GPU on which everything is done when it is enqueued.
struct Machine {
  explicit Machine(bool is_gpu) : is_gpu_(is_gpu) {}
  Context& context() { return is_gpu_ ? on_gpu_ : on_cpu_; }
  Tensor ids(const Shape& shape, const Ids& values) { return Tensor::from_host(context(), shape, values); }
  Tensor floats(const Shape& shape, const Floats& values) { return Tensor::from_host(context(), shape, values); }

 private:
  bool is_gpu_;
  std::unique_ptr<Device> cpu_ = Device::create(DeviceKind::cpu, {});
  EmulatedDriver driver_{{.is_immediate = true, .kernels = emulated_kernels()}};
  EmulatedCublas cublas_{driver_};
  CudaDevice gpu_{patient(), {driver_.table(), cublas_.table()}};
  Context on_cpu_{*cpu_}, on_gpu_{gpu_};
};

}  // namespace

TEST_CASE("integers are cast both ways, and added, multiplied and divided exactly") {
  Machine on(GENERATE(false, true));
  const std::int32_t large = (1 << 24) + 1;  // no f32
  const Tensor a = on.ids({3}, {large, -7, 5}), b = on.ids({2, 1}, {1, 2});
  CHECK(to_host_i32(a + b) == Ids{large + 1, -6, 6, large + 2, -5, 7});
  CHECK(to_host_i32(a - 1.0f) == Ids{large - 1, -8, 4});
  CHECK(to_host_i32(1.0f - a) == Ids{1 - large, 8, -4});
  CHECK(to_host_i32(-a) == Ids{-large, 7, -5});
  CHECK(to_host_i32(a * b) == Ids{large, -7, 5, 2 * large, -14, 10});
  CHECK(to_host_i32(floor_div(a, 2)) == Ids{large / 2, -4, 2});
  CHECK(to_host_i32(remainder(a, 3)) == Ids{large % 3, 2, 2});
  CHECK(to_host_i32(where(gt(a, 0.0f), a, 0.0f)) == Ids{large, 0, 5});
  CHECK(eq(a, on.ids({}, {large - 1})).to_host() == Floats{0, 0, 0});
  CHECK(gt(a, on.ids({3}, {large - 1, -7, 4})).to_host() == Floats{1, 0, 1});
  CHECK(to_host_i32(maximum(a, on.ids({}, {-6}))) == Ids{large, -6, 5});
  CHECK(cast(a, DType::f32).to_host() == Floats{1 << 24, -7, 5});
  CHECK(cast(on.ids({2}, {3, -2}), DType::bf16).to_host() == Floats{3, -2});
  CHECK(to_host_i32(cast(on.floats({4}, {2.75f, -2.75f, 1e10f, -1e10f}), DType::i32)) ==
        Ids{2, -2, 2147483520, -2147483647 - 1});
}

TEST_CASE("a divisor of 0 among integers is an error of the next wait") {
  Machine on(false);
  const Tensor x = floor_div(on.ids({2}, {1, 2}), on.ids({2}, {1, 0}));
  CHECK_THAT(coded_message_of([&] { to_host_i32(x); }), Contains("64: ") && Contains("2 divided by 0"));
}

TEST_CASE("tensors of numbers are what they say") {
  Machine on(GENERATE(false, true));
  CHECK(full(on.context(), {2, 2}, 0.5f).to_host() == Floats(4, 0.5f));
  CHECK(to_host_i32(full(on.context(), {3}, 7, DType::i32)) == Ids{7, 7, 7});
  CHECK(to_host_i32(arange(on.context(), 4, 3, -2)) == Ids{3, 1, -1, -3});
  const Tensor hot = one_hot(on.ids({2, 2}, {0, 2, -1, 1}), 3);
  CHECK(hot.shape() == Shape{2, 2, 3});
  CHECK(hot.to_host() == Floats{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0});
}

TEST_CASE("one element is an item, and tensors are printed with their ends") {
  Machine on(GENERATE(false, true));
  CHECK(item(on.floats({1, 1}, {2.5f})) == 2.5);
  CHECK(item(on.ids({}, {(1 << 24) + 1})) == (1 << 24) + 1);
  CHECK(text_of(on.floats({2, 2}, {1, -2, 0.5f, 4})) == "f32 (2, 2)\n[[1, -2],\n [0.5, 4]]");
  CHECK(text_of(arange(on.context(), 9)) == "i32 (9)\n[0, 1, 2, ..., 6, 7, 8]");
  CHECK_THAT(coded_message_of([&] { item(arange(on.context(), 2)); }), Contains("64: ") && Contains("i32 (2)"));
  CHECK_THAT(coded_message_of([&] { to_host_i32(on.floats({1}, {1})); }), Contains("64: ") && Contains("f32 (1)"));
}

TEST_CASE("random tensors follow from their key alone, and have the distribution that is asked for") {
  Machine on(false);
  const std::uint64_t key = random_key({1, 2}), other = random_key({2, 1});
  const Floats values = random_normal(on.context(), {10'000}, key, 3, 2).to_host();
  CHECK(values == random_normal(on.context(), {100, 100}, key, 3, 2).to_host());
  CHECK(values != random_normal(on.context(), {10'000}, other, 3, 2).to_host());
  double sum = 0, squares = 0;
  for (const float x : values)
    sum += static_cast<double>(x), squares += static_cast<double>(x) * static_cast<double>(x);
  CHECK(std::abs(sum / 1e4 - 3) < 5 * 2 / 100.0);  // five deviations of a mean of 10^4
  CHECK(std::abs(squares / 1e4 - sum * sum / 1e8 - 4) < 5 * 4 * std::sqrt(2.0) / 100);
  for (const float x : random_uniform(on.context(), {1000}, key, -1, 2).to_host()) REQUIRE((x >= -1 && x < 2));
  const Ids drawn = to_host_i32(random_integers(on.context(), {1000}, key, -1, 2));
  CHECK(std::set<std::int32_t>(drawn.begin(), drawn.end()) == std::set<std::int32_t>{-1, 0, 1});
  const Ids order = to_host_i32(random_order(on.context(), 100, key));
  CHECK(std::set<std::int32_t>(order.begin(), order.end()).size() == 100);
  CHECK(order != to_host_i32(arange(on.context(), 100)));
}

TEST_CASE("sorting keeps the order of equal elements, and NaN is the largest") {
  Machine on(GENERATE(false, true));
  const float nan = std::nanf("");
  const Tensor x = on.floats({2, 4}, {2, 1, nan, 1, 0, 5, 5, -1});
  CHECK(to_host_i32(argsort(x)) == Ids{1, 3, 0, 2, 3, 0, 1, 2});
  CHECK(to_host_i32(argsort(x, 1, true)) == Ids{2, 0, 1, 3, 1, 2, 0, 3});
  CHECK(to_host_i32(topk(x, 1, 0, false).ids) == Ids{1, 0, 1, 1});
  CHECK(to_host_i32(sort(on.ids({3}, {(1 << 24) + 1, 1 << 24, 3})).values) == Ids{3, 1 << 24, (1 << 24) + 1});
  CHECK(to_host_i32(cumsum(on.ids({3}, {1 << 24, 1, 1}), 0)) == Ids{1 << 24, (1 << 24) + 1, (1 << 24) + 2});
  CHECK(to_host_i32(argmin(on.floats({2, 2}, {3, 1, 0, 4}), 1)) == Ids{1, 0});
}

TEST_CASE("masks of NaN and maxima beside NaN are what IEEE says") {
  Machine on(false);
  const Tensor x = on.floats({3}, {std::nanf(""), 1, 2}), y = on.floats({3}, {1, std::nanf(""), 2});
  CHECK(ge(x, y).to_host() == Floats{0, 0, 1});
  CHECK(ne(x, x).to_host() == Floats{1, 0, 0});
  CHECK(std::isnan(maximum(x, y).to_host()[0]));
  CHECK(std::isnan(minimum(x, y).to_host()[1]));
  CHECK(logsumexp(on.floats({2}, {-INFINITY, -INFINITY}), {0}).to_host() == Floats{-INFINITY});
  CHECK(softplus(on.floats({3}, {-20, 100, 0})).to_host() == Floats{2.0611537e-9f, 100, std::log(2.0f)});
}

TEST_CASE("norms and deviations of what is alike have a gradient of 0, not NaN") {
  Machine on(false);
  Tensor x = on.floats({3}, {0, 0, 0});
  x.set_requires_grad();
  backward(norm(x) + deviation(x));
  CHECK(x.grad().to_host() == Floats{0, 0, 0});
}

TEST_CASE("arguments of composed ops that do not fit are one error, which names the op") {
  Machine on(false);
  Context& context = on.context();
  const Tensor x = on.floats({4, 3}, Floats(12, 1.0f)), ids = on.ids({2}, {0, 1});
  const Tensor image = on.floats({1, 2, 3, 3}, Floats(18, 1.0f)), weight = on.floats({2, 2, 4, 1}, Floats(16, 1.0f));
  const auto refuses = [](const std::function<void()>& body, const char* op, const char* what) {
    CHECK_THAT(coded_message_of(body), Contains("64: ") && Contains(op) && Contains(what));
  };
  refuses([&] { x + on.ids({3}, {1, 2, 3}); }, "op add", "cast");
  refuses([&] { ids + 0.5f; }, "op add", "0.5");
  refuses([&] { ids + on.ids({3}, {1, 2, 3}); }, "op add", "i32 (3)");
  refuses([&] { ids / 2.0f; }, "op div", "i32 (2)");
  refuses([&] { full(context, {1}, 0.5f, DType::i32); }, "op full", "0.5");
  refuses([&] { arange(context, 3, 1LL << 31); }, "op arange", "2147483648");
  refuses([&] { one_hot(x, 3); }, "op one_hot", "i32");
  refuses([&] { topk(x, 4); }, "op topk", "4 of dim 1");
  refuses([&] { cumsum(x, 2); }, "op cumsum", "dim 2");
  refuses([&] { scatter_add(x, 0, ids, x); }, "op scatter_add", "i32 (2)");
  refuses([&] { index_add(x, 1, ids, x); }, "op index_add", "an id for each line");
  refuses([&] { l1_loss(x, ids); }, "op l1_loss", "i32 (2)");
  refuses([&] { smoothed_cross_entropy(x, on.ids({4}, {0, 1, 2, 0}), 1); }, "op smoothed_cross_entropy", "smoothing");
  refuses([&] { einsum("ij,jk", {x, x}); }, "op einsum", "->");
  refuses([&] { einsum("ij,jk->ik", {x, x}); }, "op einsum", "'j' is 3 and 4");
  refuses([&] { einsum("ii->i", {x}); }, "op einsum", "twice");
  refuses([&] { einsum("ij->ijk", {x}); }, "op einsum", "'k'");
  refuses([&] { dot_product_attention(x, x, x); }, "op dot_product_attention", "(4, 3)");
  refuses([&] { conv2d(image, weight); }, "op conv2d", "fit");
  refuses([&] { conv2d(image, image, {}, {.groups = 3}); }, "op conv2d", "3 groups");
  refuses([&] { variance(on.floats({1}, {1})); }, "op variance", "1 elements");
  refuses([&] { upsample_nearest(image, 0); }, "op upsample_nearest", "at least 1");
}

}  // namespace zs::test::values_test
