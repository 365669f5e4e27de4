// Layers that no family uses as they are, and what all layers have in common.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "model/nn/batch_norm.h"
#include "model/nn/conv.h"
#include "model/nn/mlp.h"
#include "model/nn/module_list.h"
#include "model/nn/norm.h"
#include "runtime/shard/runtime/sharded_runtime.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::nn_test {
namespace {

std::vector<std::string> names_of(const Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.own_parameters()) names.push_back(parameter->name());
  for (const Module* child : module.children())
    for (std::string& name : names_of(*child)) names.push_back(std::move(name));
  return names;
}

/// A model that is nothing but its layers, in one unit.
struct Stack : Module {
  Stack() : Module(""), layers(make_child<Sequential>("layers")), more(make_child<ModuleList<Linear>>("more")) {
    layers.add<RMSNorm>(6)
        .add<Linear>(6, 10)
        .add([](const Tensor& x) { return gelu(x, GeluKind::erf); })
        .add<Linear>(10, 4, LinearOptions{.has_bias = false});
    for (int i = 0; i < 2; ++i) more.add(4, 4);
  }
  Tensor forward(const Tensor& x) {
    const ForwardScope scope = enter();
    Tensor y = layers.forward(x);
    for (Linear* layer : more) y = layer->forward(y);
    return y;
  }
  Sequential& layers;
  ModuleList<Linear>& more;
};

/// What `reduce` makes of each window's elements, of x (images, size, size) with zeros around it.
Values windows(const Values& x, std::int64_t size, const Window& w,
               const std::function<double(std::int64_t image, const Values& seen)>& reduce) {
  const std::int64_t images = std::ssize(x) / (size * size);
  Values y;
  for (std::int64_t image = 0; image < images; ++image) {
    for (std::int64_t top = -w.padding; top + w.height <= size + w.padding; top += w.stride) {
      for (std::int64_t left = -w.padding; left + w.width <= size + w.padding; left += w.stride) {
        Values seen;
        for (std::int64_t i = top; i < top + w.height; ++i)
          for (std::int64_t j = left; j < left + w.width; ++j)
            seen.push_back(i < 0 || j < 0 || i >= size || j >= size
                               ? 0
                               : x[static_cast<std::size_t>((image * size + i) * size + j)]);
        y.push_back(reduce(image, seen));
      }
    }
  }
  return y;
}

/// x (2, 3, 5, 5), weight (4, 3, 3, 2), bias (4)
Values convolved(const Values& x, const Values& weight, const Values* bias, const Window& w) {
  Values y;
  for (std::size_t image = 0; image < 2; ++image) {
    for (std::size_t out = 0; out < 4; ++out) {
      Values sum;
      for (std::size_t in = 0; in < 3; ++in) {
        const auto from = x.begin() + static_cast<std::ptrdiff_t>((image * 3 + in) * 25);
        const Values part = windows(Values(from, from + 25), 5, w, [&](std::int64_t, const Values& seen) {
          double product = 0;
          for (std::size_t i = 0; i < seen.size(); ++i) product += seen[i] * weight[(out * 3 + in) * seen.size() + i];
          return product;
        });
        sum.resize(part.size());
        for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
      }
      for (const double element : sum) y.push_back(element + (bias != nullptr ? (*bias)[out] : 0));
    }
  }
  return y;
}

/// x (3, 4, 5)
Values batch_normalized(const Values& x, const Values& weight, const Values& bias) {
  Values y(x.size());
  const auto at = [](std::size_t c, std::size_t i) { return (i / 5 * 4 + c) * 5 + i % 5; };
  for (std::size_t c = 0; c < 4; ++c) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < 15; ++i) mean += x[at(c, i)] / 15;
    for (std::size_t i = 0; i < 15; ++i) variance += (x[at(c, i)] - mean) * (x[at(c, i)] - mean) / 15;
    for (std::size_t i = 0; i < 15; ++i)
      y[at(c, i)] = (x[at(c, i)] - mean) / std::sqrt(variance + 1e-5) * weight[c] + bias[c];
  }
  return y;
}

}  // namespace

TEST_CASE("convolutions and pools compute what windows see, with gradients, in f32 and bf16") {
  const Precisions precisions = GENERATE(kF32, kBf16, kBf16Grads);
  const Window window = GENERATE(Window{3, 2}, Window{3, 2, 2, 1});
  const bool has_bias = GENERATE(true, false);
  CAPTURE(precisions.name, window.stride, has_bias);
  OpUnderTest conv{
      {normal({2, 3, 5, 5}, "x")},
      {normal({4, 3, 3, 2}, "weight")},
      [&](Context&, const auto& in, const auto& p) { return conv2d(in[0], *p[0], has_bias ? p[1] : nullptr, window); },
      [&](const auto& a) { return convolved(a[0], a[1], has_bias ? &a[2] : nullptr, window); }};
  if (has_bias) conv.parameters.push_back(normal({4}, "bias"));
  check_gradients(conv, precisions);
  if (window.padding > 0 || has_bias) return;
  const OpUnderTest most{{normal({2, 2, 5, 5}, "x")},
                         {},
                         [&](Context&, const auto& in, const auto&) { return max_pool2d(in[0], window); },
                         [&](const auto& a) {
                           return windows(a[0], 5, window, [](std::int64_t, const Values& seen) {
                             return *std::max_element(seen.begin(), seen.end());
                           });
                         }};
  check_gradients(most, precisions);
  const OpUnderTest mean{{normal({2, 2, 5, 5}, "x")},
                         {},
                         [&](Context&, const auto& in, const auto&) { return mean_pool2d(in[0], window); },
                         [&](const auto& a) {
                           return windows(a[0], 5, window, [](std::int64_t, const Values& seen) {
                             return std::accumulate(seen.begin(), seen.end(), 0.0) / static_cast<double>(seen.size());
                           });
                         }};
  check_gradients(mean, precisions);
}

TEST_CASE("a batch norm normalises each channel by its batch, with gradients, in f32 and bf16") {
  const Precisions precisions = GENERATE(kF32, kBf16, kBf16Grads);
  CAPTURE(precisions.name);
  check_gradients({{normal({3, 4, 5}, "x", 2, 1)},
                   {normal({4}, "weight", 0.5, 1), normal({4}, "bias")},
                   [](Context&, const auto& in, const auto& p) { return batch_norm(in[0], *p[0], *p[1]).y; },
                   [](const auto& a) { return batch_normalized(a[0], a[1], a[2]); }},
                  precisions);
}

TEST_CASE("layers name their parameters by where they are, in the order of the model") {
  CHECK(names_of(Stack()) == std::vector<std::string>{"layers.0.weight", "layers.1.weight", "layers.1.bias",
                                                      "layers.3.weight", "more.0.weight", "more.0.bias",
                                                      "more.1.weight", "more.1.bias"});
  CHECK(names_of(Mlp("mlp", {.width = 4, .hidden = 8})) ==
        std::vector<std::string>{"mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias"});
  CHECK(names_of(Mlp("mlp", {.width = 4, .hidden = 8, .activation = Activation::swiglu, .has_bias = false})) ==
        std::vector<std::string>{"mlp.gate_up.weight", "mlp.down.weight"});
}

TEST_CASE("initial values may be a function of the element, at any number of ranks") {
  const int ranks = GENERATE(1, 3);
  std::vector<std::vector<float>> seen(static_cast<std::size_t>(ranks));
  run_local_world(ranks, {.timeout_s = 60}, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {});
    Context context(*device);
    Linear linear("linear", 5, 7, {.init = {.function = [](std::int64_t i) { return 0.5f * static_cast<float>(i); }}});
    ShardedRuntime runtime(context, world, {});
    shard_module(linear, runtime, Units::model);
    runtime.executor().read_full(0, [&](const Parameter& parameter, const float* values) {
      if (parameter.name() == "linear.weight") seen[static_cast<std::size_t>(world.rank())].assign(values, values + 35);
    });
  });
  for (const auto& weight : seen) {
    REQUIRE(weight.size() == 35);
    for (std::size_t i = 0; i < 35; ++i) CHECK(weight[i] == 0.5f * static_cast<float>(i));
  }
}

TEST_CASE("an MLP with relu has no hidden elements below zero") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  const auto world = make_single_world({});
  Mlp mlp("mlp", {.width = 4, .hidden = 8, .activation = Activation::relu});
  ShardedRuntime runtime(context, *world, {});
  shard_module(mlp, runtime, Units::model);
  std::map<std::string, Values> w;
  runtime.executor().read_full(0, [&](const Parameter& parameter, const float* values) {
    w[parameter.name()] = Values(values, values + parameter.numel());
  });
  const Values x = normal({5, 4}, "x").values;
  runtime.begin_micro_batch(Mode::eval, true);
  const Tensor y = mlp(Tensor::from_host(context, {5, 4}, to_floats(x)));
  runtime.end_micro_batch();
  Values hidden = ref::linear(x, w.at("mlp.up.weight"), &w.at("mlp.up.bias"), 4);
  for (double& value : hidden) value = std::max(value, 0.0);
  check_close("y", y.to_host(), ref::linear(hidden, w.at("mlp.down.weight"), &w.at("mlp.down.bias"), 8), 2e-6);
}

TEST_CASE("a Sequential and a ModuleList compute their layers one after the other") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  const auto world = make_single_world({});
  Stack stack;
  ShardedRuntime runtime(context, *world, {});
  shard_module(stack, runtime, Units::model);
  std::map<std::string, Values> w;
  runtime.executor().read_full(0, [&](const Parameter& parameter, const float* values) {
    w[parameter.name()] = Values(values, values + parameter.numel());
  });
  const Values x = normal({5, 6}, "x").values;
  runtime.begin_micro_batch(Mode::eval, true);
  const Tensor y = stack.forward(Tensor::from_host(context, {5, 6}, to_floats(x)));
  runtime.end_micro_batch();
  Values want =
      ref::linear(ref::rms_norm(x, w.at("layers.0.weight"), 1e-5), w.at("layers.1.weight"), &w.at("layers.1.bias"), 6);
  want = ref::linear(ref::gelu(want, GeluKind::erf), w.at("layers.3.weight"), nullptr, 10);
  for (const std::string layer : {"more.0.", "more.1."})
    want = ref::linear(want, w.at(layer + "weight"), &w.at(layer + "bias"), 4);
  check_close("y", y.to_host(), want, 2e-6);
  CHECK(stack.more.size() == 2);
  CHECK(stack.more[1].path() == "more.1");
}

}  // namespace zs::test::nn_test
