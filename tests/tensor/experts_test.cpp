#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "runtime/device/cpu_device.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/experts.h"
#include "tests/message_of.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::experts_test {
namespace {

using Tensors = std::vector<Tensor>;
using Parameters = std::vector<Parameter*>;
using Arguments = std::vector<Values>;

struct Mixture {
  std::int64_t tokens, width, experts, hidden;
  RouteOptions options = {};
  bool has_bias = false;
};

/// Token by token, and expert by expert.
struct ReferenceRoute {
  std::vector<std::size_t> ids;
  Values weights;
};

ReferenceRoute reference_route(const Values& logits, const RouteOptions& options) {
  Values scores = logits;
  if (options.scores == RouterScores::sigmoid) {
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
  } else {
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score);
    for (double& score : scores) score /= sum;
  }
  ReferenceRoute route{std::vector<std::size_t>(scores.size()), {}};
  std::iota(route.ids.begin(), route.ids.end(), std::size_t{0});
  std::stable_sort(route.ids.begin(), route.ids.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
  route.ids.resize(static_cast<std::size_t>(options.chosen));
  double sum = 0;
  for (const std::size_t e : route.ids) sum += scores[e];
  for (const std::size_t e : route.ids)
    route.weights.push_back(scores[e] / (options.normalizes ? sum : 1) * static_cast<double>(options.factor));
  return route;
}

Values part(const Values& all, std::int64_t index, std::int64_t length) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index * length);
  return {begin, begin + static_cast<std::ptrdiff_t>(length)};
}

/// x; router, gate_up, down, and their biases.
Values reference_mixture(const Mixture& m, const Arguments& a) {
  Values y;
  for (std::int64_t t = 0; t < m.tokens; ++t) {
    const Values x = part(a[0], t, m.width);
    const ReferenceRoute route =
        reference_route(ref::linear(x, a[1], m.has_bias ? &a[4] : nullptr, m.width), m.options);
    Values sum(static_cast<std::size_t>(m.width));
    for (std::size_t s = 0; s < route.ids.size(); ++s) {
      const auto e = static_cast<std::int64_t>(route.ids[s]);
      const Values up_bias = m.has_bias ? part(a[5], e, 2 * m.hidden) : Values{},
                   down_bias = m.has_bias ? part(a[6], e, m.width) : Values{};
      const Values up = ref::linear(x, part(a[2], e, 2 * m.hidden * m.width), m.has_bias ? &up_bias : nullptr, m.width);
      const Values down = ref::linear(ref::swiglu(up, 2 * m.hidden), part(a[3], e, m.width * m.hidden),
                                      m.has_bias ? &down_bias : nullptr, m.hidden);
      for (std::size_t c = 0; c < down.size(); ++c) sum[c] += route.weights[s] * down[c];
    }
    y.insert(y.end(), sum.begin(), sum.end());
  }
  return y;
}

Tensor mixture(const Tensor& x, const Parameters& p, const Mixture& m) {
  const auto bias = [&](std::size_t i) { return m.has_bias ? p[3 + i] : nullptr; };
  const Routing routing = route(router_logits(x, *p[0], bias(0)), m.options);
  const Tensor hidden = swiglu(grouped_linear(gather_tokens(x, routing), *p[1], bias(1), routing));
  return combine_tokens(grouped_linear(hidden, *p[2], bias(2), routing), routing);
}

OpUnderTest mixture_op(const Mixture& m) {
  OpUnderTest op{
      {normal({m.tokens, m.width}, "x")},
      {normal({m.experts, m.width}, "router", 0.7), normal({m.experts * 2 * m.hidden, m.width}, "gate_up", 0.5),
       normal({m.experts * m.width, m.hidden}, "down", 0.5)},
      [=](Context&, const Tensors& x, const Parameters& p) { return mixture(x[0], p, m); },
      [=](const Arguments& a) { return reference_mixture(m, a); }};
  if (m.has_bias) {
    op.parameters.push_back(normal({m.experts}, "router bias", 0.5));
    op.parameters.push_back(normal({m.experts * 2 * m.hidden}, "up bias"));
    op.parameters.push_back(normal({m.experts * m.width}, "down bias"));
  }
  return op;
}

void check_in_all_precisions(const Mixture& m) {
  // Of bf16 more roundings meet here than in one op: of the rows, of both products and of their gradients.
  constexpr double kSeveralOps = 3;
  for (Precisions precisions : {kF32, kBf16, kBf16Grads}) {
    precisions.tolerance *= kSeveralOps;
    check_gradients(mixture_op(m), precisions);
  }
}

struct Chosen {
  std::vector<float> weights, shares;
  std::vector<std::int32_t> ids, order, places;
  std::vector<std::int64_t> offsets;
};

template <class T>
std::vector<T> host(const Tensor& tensor) {
  tensor.context().stream().synchronize();
  const Buffer buffer = tensor.buffer();
  return {buffer.as<T>(), buffer.as<T>() + buffer.elems};
}

Chosen chosen(Context& context, std::int64_t tokens, const std::vector<float>& logits, const RouteOptions& options,
              Parameter* bias = nullptr) {
  const Tensor in = Tensor::from_host(context, {tokens, std::ssize(logits) / tokens}, logits);
  const Routing r = route(in, options, bias);
  return {host<float>(r.weights),      host<float>(r.shares),        host<std::int32_t>(r.ids),
          host<std::int32_t>(r.order), host<std::int32_t>(r.places), host<std::int64_t>(r.offsets)};
}

DeviceOptions with_threads(int threads) {
  DeviceOptions options;
  options.threads = threads;
  return options;
}

}  // namespace

TEST_CASE("the gradients of a mixture of experts agree with central differences, whatever its router does") {
  const RouteOptions options = GENERATE(RouteOptions{.chosen = 2}, RouteOptions{.chosen = 1, .normalizes = false},
                                        RouteOptions{.chosen = 3, .normalizes = false, .factor = 2.5f},
                                        RouteOptions{.chosen = 2, .scores = RouterScores::sigmoid},
                                        RouteOptions{.chosen = 4, .scores = RouterScores::sigmoid, .factor = 0.5f});
  check_in_all_precisions({.tokens = 7, .width = 6, .experts = 4, .hidden = 5, .options = options});
}

TEST_CASE("experts have biases, many rows in pieces, or none, and their gradients agree with central differences") {
  check_in_all_precisions({.tokens = 9, .width = 5, .experts = 3, .hidden = 4, .has_bias = true});
  check_in_all_precisions({.tokens = 2, .width = 4, .experts = 9, .hidden = 3});  // most have no rows
  check_gradients(mixture_op({.tokens = 300, .width = 3, .experts = 1, .hidden = 2, .options = {.chosen = 1}}), kBf16);
}

TEST_CASE("experts are chosen by score, of equals the lower one first, and NaN before all") {
  CpuDevice device({});
  Context context(device);
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const Chosen c = chosen(context, 3, {1, 3, 3, 0, 3, 2, 2, 2, 2, 2, 0, 1, 2, kNaN, 3}, {.chosen = 3});
  CHECK(c.ids == std::vector<std::int32_t>{1, 2, 4, 0, 1, 2, 3, 4, 2});
  CHECK(std::isnan(c.weights[6]));
  CHECK(c.weights[0] == Approx(1.0 / 3));
}

TEST_CASE("a bias of the choice changes which experts are chosen, and not their weights") {
  CpuDevice device({});
  Context context(device);
  PlainOwner owner(context, DType::f32, DType::f32);
  Parameter bias("bias", {3}, {}, false);
  owner.add(bias, {0, 0, 1});
  const Chosen c =
      chosen(context, 1, {2, 1, 0}, {.chosen = 1, .scores = RouterScores::sigmoid, .normalizes = false}, &bias);
  CHECK(c.ids == std::vector<std::int32_t>{2});
  CHECK(c.weights[0] == 0.5f);
}

TEST_CASE("rows are sorted by expert and then by token, and experts without tokens have none") {
  CpuDevice device({});
  Context context(device);
  const Chosen c = chosen(context, 3, {9, 8, 0, 0, 0, 9, 0, 8, 9, 8, 0, 0}, {.chosen = 2});
  REQUIRE(c.ids == std::vector<std::int32_t>{0, 1, 1, 3, 0, 1});
  CHECK(c.offsets == std::vector<std::int64_t>{0, 2, 5, 5, 6});
  CHECK(c.order == std::vector<std::int32_t>{0, 4, 1, 2, 5, 3});
  CHECK(c.places == std::vector<std::int32_t>{0, 2, 3, 5, 1, 4});
  CHECK(c.shares == std::vector<float>{2.0f / 6, 3.0f / 6, 0, 1.0f / 6});
}

TEST_CASE("a mixture's results are the same bits at every number of threads, forward and backward") {
  const Mixture m{.tokens = 600, .width = 64, .experts = 5, .hidden = 96, .options = {.chosen = 2}};
  const OpUnderTest op = mixture_op(m);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 3}) {
    CpuDevice device(with_threads(threads));
    Context context(device);
    PlainOwner owner(context, dtype, DType::f32);
    std::vector<std::unique_ptr<Parameter>> owned;
    Parameters parameters;
    for (const Argument& argument : op.parameters) {
      owned.push_back(std::make_unique<Parameter>(std::to_string(owned.size()), argument.shape, Init{}, true));
      owner.add(*owned.back(), to_floats(argument.values));
      parameters.push_back(owned.back().get());
    }
    Tensor x = Tensor::from_host(context, op.inputs[0].shape, to_floats(op.inputs[0].values), dtype);
    x.set_requires_grad();
    const Tensor y = op.run(context, {x}, parameters);
    backward(mean(cast(y, DType::f32)));
    std::vector<std::vector<float>> results = {y.to_host(), x.grad().to_host()};
    for (Parameter* parameter : parameters) results.push_back(owner.grad(*parameter).to_host());
    if (first.empty()) first = results;
    for (std::size_t i = 0; i < results.size(); ++i)
      CHECK(std::memcmp(results[i].data(), first[i].data(), results[i].size() * sizeof(float)) == 0);
  }
}

TEST_CASE("a loss inside a model is minimised with it, by the seed of its backward") {
  CpuDevice device({});
  Context context(device);
  Tensor x = Tensor::from_host(context, {2}, std::vector<float>{3, 4});
  x.set_requires_grad();
  const Tensor seed = Tensor::from_host(context, {}, std::vector<float>{0.5f});
  const Tensor y = with_loss(x, sum(x * x), [seed] { return seed; });
  backward(sum(y), 0.5f);
  CHECK(x.grad().to_host() == std::vector<float>{0.5f + 3, 0.5f + 4});
}

TEST_CASE("what does not fit a mixture's op is refused") {
  CpuDevice device({});
  Context context(device);
  const Tensor logits = Tensor::zeros(context, {4, 3}, DType::f32);
  CHECK(message_of([&] { route(logits, {.chosen = 4}); }).find("4 of 3 experts are chosen") != std::string::npos);
  CHECK(message_of([&] {
          route(Tensor::zeros(context, {4, 3}, DType::bf16), {});
        }).find("logits are bf16") != std::string::npos);
  const Routing routing = route(logits, {});
  CHECK(message_of([&] {
          gather_tokens(Tensor::zeros(context, {5, 2}, DType::f32), routing);
        }).find("for 4 rows") != std::string::npos);
}

}  // namespace zs::test::experts_test
