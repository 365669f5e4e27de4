// A whole small transformer with tied embeddings against an independent double implementation.
#include <catch2/catch.hpp>

#include <cmath>
#include <memory>

#include "tests/tensor/gradient_check.h"

namespace zs::test::transformer_test {
namespace {

constexpr std::int64_t kBatch = 2, kTime = 5, kWidth = 6, kHeads = 2, kClasses = 11, kPadded = 16, kContext = 7,
                       kLayers = 2;
constexpr std::size_t kPerLayer = 12;

enum LayerParameter : std::size_t {
  gain1,
  shift1,
  qkv_w,
  qkv_b,
  proj_w,
  proj_b,
  gain2,
  shift2,
  up_w,
  up_b,
  down_w,
  down_b
};

/// Token table, positions, the layers' parameters, the last norm's.
std::vector<Argument> arguments() {
  std::vector<Argument> list{normal({kPadded, kWidth}, "wte", 0.8), normal({kContext, kWidth}, "wpe", 0.5)};
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const auto add = [&](const Shape& shape, const char* what, double deviation, double mean) {
      list.push_back(normal(shape, fmt::format("{}.{}", layer, what).c_str(), deviation, mean));
    };
    const auto add_norm = [&](const char* what) {
      add({kWidth}, what, 0.3, 1);
      add({kWidth}, fmt::format("{}.shift", what).c_str(), 0.3, 0);
    };
    const auto add_linear = [&](const char* what, std::int64_t outputs, std::int64_t inputs) {
      add({outputs, inputs}, what, 0.5, 0);
      add({outputs}, fmt::format("{}.bias", what).c_str(), 0.3, 0);
    };
    add_norm("norm1");
    add_linear("qkv", 3 * kWidth, kWidth);
    add_linear("proj", kWidth, kWidth);
    add_norm("norm2");
    add_linear("up", 4 * kWidth, kWidth);
    add_linear("down", kWidth, 4 * kWidth);
  }
  list.push_back(normal({kWidth}, "norm", 0.3, 1));
  list.push_back(normal({kWidth}, "norm.shift", 0.3));
  return list;
}

double reference_loss(const std::vector<Values>& p) {
  const auto ids = random_ids(kBatch * kTime, kClasses, 1), targets = random_ids(kBatch * kTime, kClasses, 2);
  Values x = ref::embedding(ids, kTime, p[0], &p[1], kWidth);
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const Values* l = &p[2 + layer * kPerLayer];
    const Values qkv = ref::linear(ref::layer_norm(x, l[gain1], l[shift1], 1e-5), l[qkv_w], &l[qkv_b], kWidth);
    const Values attended = ref::causal_attention(qkv, {kBatch, kTime, kHeads, kWidth / kHeads});
    x = ref::add(x, ref::linear(attended, l[proj_w], &l[proj_b], kWidth));
    const Values up = ref::linear(ref::layer_norm(x, l[gain2], l[shift2], 1e-5), l[up_w], &l[up_b], kWidth);
    x = ref::add(x, ref::linear(ref::gelu(up, GeluKind::tanh), l[down_w], &l[down_b], 4 * kWidth));
  }
  const std::size_t last = p.size() - 2;
  return ref::lm_head_loss(ref::layer_norm(x, p[last], p[last + 1], 1e-5), p[0], targets, kClasses);
}

/// The same with the library's ops.
Tensor loss_of(Context& context, const std::vector<std::unique_ptr<Parameter>>& p) {
  const auto ids = random_ids(kBatch * kTime, kClasses, 1), targets = random_ids(kBatch * kTime, kClasses, 2);
  Tensor x = embedding(Tensor::from_host(context, {kBatch, kTime}, ids), *p[0], p[1].get());
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const auto* l = &p[2 + layer * kPerLayer];
    const Tensor qkv = linear(layer_norm(x, *l[gain1], *l[shift1]), *l[qkv_w], l[qkv_b].get());
    x = add(x, linear(causal_attention(qkv, kHeads), *l[proj_w], l[proj_b].get()));
    const Tensor up = linear(layer_norm(x, *l[gain2], *l[shift2]), *l[up_w], l[up_b].get());
    x = add(x, linear(gelu(up, GeluKind::tanh), *l[down_w], l[down_b].get()));
  }
  const std::size_t last = p.size() - 2;
  return lm_head_loss(layer_norm(x, *p[last], *p[last + 1]), *p[0],
                      Tensor::from_host(context, {kBatch * kTime}, targets), kClasses);
}

struct Outcome {
  float loss;
  std::vector<std::vector<float>> gradients;
};

/// `micro_batches` times the same batch; the gradients add up.
Outcome run(const std::vector<Argument>& list, const Precisions& precisions, int threads, int micro_batches = 1) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = threads, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  PlainOwner owner(context, precisions.value, precisions.grad);
  std::vector<std::unique_ptr<Parameter>> parameters;
  for (const Argument& argument : list) {
    parameters.push_back(
        std::make_unique<Parameter>(fmt::format("p{}", parameters.size()), argument.shape, Init{}, true));
    owner.add(*parameters.back(), to_floats(argument.values));
  }
  Outcome outcome{};
  for (int i = 0; i < micro_batches; ++i) {
    const Tensor loss = loss_of(context, parameters);
    backward(loss);
    outcome.loss = loss.to_host().front();
  }
  for (const auto& parameter : parameters) {
    CHECK(parameter->pending_uses() == 0);
    outcome.gradients.push_back(owner.grad(*parameter).to_host());
  }
  return outcome;
}

std::vector<Argument> rounded_arguments(DType dtype) {
  auto list = arguments();
  for (Argument& argument : list) argument.values = rounded(argument.values, dtype);
  return list;
}

}  // namespace

TEST_CASE("I8: loss and gradients of a whole transformer agree with the double implementation") {
  const auto list = rounded_arguments(DType::f32);
  std::vector<Values> values;
  for (const Argument& argument : list) values.push_back(argument.values);
  const Outcome got = run(list, kF32, 2);
  const auto want = central_differences(list, reference_loss);
  CHECK(got.loss == Approx(reference_loss(values)).epsilon(1e-6));
  // The rounding errors of some thirty f32 ops in a row, 6e-8 each, meet: 1.3e-6 was the worst seen.
  for (std::size_t i = 0; i < want.size(); ++i)
    check_close(fmt::format("parameter {}", i), got.gradients[i], want[i], 5e-6);
}

TEST_CASE("I8: loss and gradients of a whole bf16 transformer stay near the double implementation") {
  const auto list = rounded_arguments(DType::bf16);
  std::vector<Values> values;
  for (const Argument& argument : list) values.push_back(argument.values);
  const Outcome got = run(list, kBf16, 2);
  const auto want = central_differences(list, reference_loss);
  // Thirty ops round to 2^-9 each: as a random walk 2 percent, and the worst element a few times that.
  CHECK(got.loss == Approx(reference_loss(values)).epsilon(0.02));
  for (std::size_t i = 0; i < want.size(); ++i)
    check_close(fmt::format("parameter {}", i), got.gradients[i], want[i], 0.1);
}

TEST_CASE("a whole transformer gives the same bits with one and with two threads, and every time") {
  const Precisions precisions = GENERATE(kF32, kBf16);
  const auto list = rounded_arguments(precisions.value);
  const Outcome once = run(list, precisions, 1), again = run(list, precisions, 1), threaded = run(list, precisions, 2);
  CHECK(once.loss == again.loss);
  CHECK(once.gradients == again.gradients);
  CHECK(once.loss == threaded.loss);
  CHECK(once.gradients == threaded.gradients);
}

TEST_CASE("gradients of two micro-batches add up in the parameters' buffers") {
  const auto list = rounded_arguments(DType::f32);
  const Outcome one = run(list, kF32, 1), two = run(list, kF32, 1, 2);
  for (std::size_t i = 0; i < list.size(); ++i) {
    Values doubled;
    for (const float value : one.gradients[i]) doubled.push_back(2.0 * static_cast<double>(value));
    check_close(fmt::format("parameter {}", i), two.gradients[i], doubled, 1e-6);
  }
}

}  // namespace zs::test::transformer_test
