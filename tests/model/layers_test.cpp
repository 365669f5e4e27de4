// Layers that are composed of general ops: recurrent ones, convolutions of other kinds, group norms, cross attention.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <map>

#include "model/nn/conv.h"
#include "model/nn/cross_attention.h"
#include "model/nn/group_norm.h"
#include "model/nn/mlp.h"
#include "model/nn/module_parameters.h"
#include "model/nn/recurrent.h"
#include "runtime/shard/runtime/sharded_runtime.h"
#include "runtime/tensor/convolution.h"
#include "tests/message_of.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::layers_test {
namespace {

using Catch::Contains;
using Weights = std::map<std::string, Values>;

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

/// A layer alone, in one unit on one rank, as it begins.
template <class L>
struct Alone {
  template <class... Args>
  explicit Alone(const Args&... args) : layer("layer", args...) {
    shard_module(layer, runtime, Units::model);
    runtime.executor().read_full(0, [&](const Parameter& parameter, const float* values) {
      weights[parameter.name()] = Values(values, values + parameter.numel());
    });
  }
  Tensor tensor(const Shape& shape, const Values& values) {
    return Tensor::from_host(context, shape, to_floats(values));
  }
  Tensor weight(const std::string& name, const Shape& shape) { return tensor(shape, weights.at("layer." + name)); }
  /// body() as an evaluation.
  template <class Body>
  auto evaluate(const Body& body) {
    runtime.begin_micro_batch(Mode::eval, true);
    auto result = body();
    runtime.end_micro_batch();
    return result;
  }

  std::unique_ptr<Device> device = Device::create(DeviceKind::cpu, {});
  Context context{*device};
  std::unique_ptr<World> world = make_single_world({});
  L layer;
  ShardedRuntime runtime{context, *world, {}};
  Weights weights;
};

/// weight x + bias of one row.
Values affine(const Weights& w, const std::string& kind, std::size_t layer, const Values& x) {
  const std::string end = kind + "_l" + std::to_string(layer);
  return ref::linear(x, w.at("layer.weight_" + end), &w.at("layer.bias_" + end), static_cast<std::int64_t>(x.size()));
}

using Step = std::function<void(std::size_t layer, const Values& x, Values& h, Values& c)>;
/// Two layers over a sequence of rows of three, from zeros: h of the last layer for each.
Values recurrent(const Values& x, std::size_t hidden, const Step& step) {
  std::vector<Values> h(2, Values(hidden)), c = h;
  Values outputs;
  for (auto at = x.begin(); at != x.end(); at += 3) {
    Values row(at, at + 3);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      step(layer, row, h[layer], c[layer]);
      row = h[layer];
    }
    outputs.insert(outputs.end(), row.begin(), row.end());
  }
  return outputs;
}

Values rows_of(const Values& x, std::size_t sample, std::size_t size) {
  const auto first = x.begin() + static_cast<std::ptrdiff_t>(sample * size);
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

}  // namespace

TEST_CASE("an LSTM computes its gates, layer after layer and token after token") {
  constexpr std::size_t kHidden = 4;
  Alone<Lstm> lstm(3, 4, RecurrentOptions{.layers = 2});
  const Values x = normal({2, 5, 3}, "x").values;
  Values want;
  for (std::size_t sample = 0; sample < 2; ++sample) {
    const Values y =
        recurrent(rows_of(x, sample, 15), kHidden, [&](std::size_t layer, const Values& in, Values& h, Values& c) {
          const Values a = affine(lstm.weights, "ih", layer, in), b = affine(lstm.weights, "hh", layer, h);
          for (std::size_t i = 0; i < kHidden; ++i) {
            const auto gate = [&](std::size_t g) { return a[g * kHidden + i] + b[g * kHidden + i]; };
            c[i] = sigmoid_of(gate(1)) * c[i] + sigmoid_of(gate(0)) * std::tanh(gate(2));
            h[i] = sigmoid_of(gate(3)) * std::tanh(c[i]);
          }
        });
    want.insert(want.end(), y.begin(), y.end());
  }
  lstm.evaluate([&] {
    const Tensor all = lstm.tensor({2, 5, 3}, x);
    const LstmResult whole = lstm.layer(all);
    check_close("y", whole.outputs.to_host(), want, 2e-6);
    // In two parts, the second from the state behind the first
    const LstmResult first = lstm.layer(slice(all, 1, 0, 2)), second = lstm.layer(slice(all, 1, 2, 3), first.state);
    CHECK(concat({first.outputs, second.outputs}, 1).to_host() == whole.outputs.to_host());
    CHECK(second.state.c.to_host() == whole.state.c.to_host());
    return 0;
  });
  lstm.runtime.begin_micro_batch(Mode::eval, true);
  const Tensor wrong = lstm.tensor({2, 5, 3}, x);
  CHECK_THAT(coded_message_of([&] { lstm.layer(wrong, LstmState{.h = wrong, .c = wrong}); }),
             Contains("64: LSTM \"layer\"") && Contains("f32 (2, 5, 3)"));
  lstm.runtime.abandon();
}

TEST_CASE("a GRU computes its gates, layer after layer and token after token") {
  constexpr std::size_t kHidden = 3;
  Alone<Gru> gru(3, 3, RecurrentOptions{.layers = 2});
  const Values x = normal({2, 4, 3}, "x").values;
  Values want;
  for (std::size_t sample = 0; sample < 2; ++sample) {
    const Values y =
        recurrent(rows_of(x, sample, 12), kHidden, [&](std::size_t layer, const Values& in, Values& h, Values&) {
          const Values a = affine(gru.weights, "ih", layer, in), b = affine(gru.weights, "hh", layer, h);
          for (std::size_t i = 0; i < kHidden; ++i) {
            const double reset = sigmoid_of(a[i] + b[i]), keep = sigmoid_of(a[kHidden + i] + b[kHidden + i]);
            const double fresh = std::tanh(a[2 * kHidden + i] + reset * b[2 * kHidden + i]);
            h[i] = (1 - keep) * fresh + keep * h[i];
          }
        });
    want.insert(want.end(), y.begin(), y.end());
  }
  const GruResult result = gru.evaluate([&] { return gru.layer(gru.tensor({2, 4, 3}, x)); });
  check_close("y", result.outputs.to_host(), want, 2e-6);
  CHECK(result.state.shape() == Shape{2, 2, 3});
}

TEST_CASE("a group norm normalises each sample's groups of channels, with gradients, in f32 and bf16") {
  const Precisions precisions = GENERATE(kF32, kBf16, kBf16Grads);
  CAPTURE(precisions.name);
  check_gradients({{normal({3, 4, 5}, "x", 2, 1)},
                   {normal({4}, "weight", 0.5, 1), normal({4}, "bias")},
                   [](Context& context, const auto& in, const auto& p) {
                     return group_norm(in[0], 2, as_tensor(context, *p[0]), as_tensor(context, *p[1]));
                   },
                   [](const auto& a) {
                     Values y = a[0];
                     for (std::size_t first = 0; first < y.size(); first += 10) {  // two channels of five
                       double mean = 0, variance = 0;
                       for (std::size_t i = first; i < first + 10; ++i) mean += a[0][i] / 10;
                       for (std::size_t i = first; i < first + 10; ++i)
                         variance += (a[0][i] - mean) * (a[0][i] - mean) / 10;
                       for (std::size_t i = first; i < first + 10; ++i)
                         y[i] = (a[0][i] - mean) / std::sqrt(variance + 1e-5) * a[1][i / 5 % 4] + a[2][i / 5 % 4];
                     }
                     return y;
                   }},
                  precisions);
}

TEST_CASE("layers of convolutions are the ops of their weights") {
  const Values x = normal({2, 4, 6, 5}, "x").values;
  Alone<Conv2d> dilated(4, 6, 2, Conv2dOptions{.dilation = 2, .groups = 2});
  CHECK(dilated.evaluate([&] {
                 return dilated.layer(dilated.tensor({2, 4, 6, 5}, x));
               })
            .to_host() == conv2d(dilated.tensor({2, 4, 6, 5}, x), dilated.weight("weight", {6, 2, 2, 2}),
                                 dilated.weight("bias", {6}), {.dilation = 2, .groups = 2})
                              .to_host());
  Alone<Conv1d> flat(4, 3, 3, Conv1dOptions{.stride = 2, .padding = 1});
  CHECK(flat.evaluate([&] {
              return flat.layer(flat.tensor({2, 4, 30}, x));
            })
            .to_host() == conv1d(flat.tensor({2, 4, 30}, x), flat.weight("weight", {3, 4, 3}), flat.weight("bias", {3}),
                                 {.stride = 2, .padding = 1})
                              .to_host());
  Alone<ConvTranspose2d> back(4, 2, 3, ConvTransposeOptions{.stride = 2, .padding = 1, .output_padding = 1});
  const Tensor y = back.evaluate([&] { return back.layer(back.tensor({2, 4, 6, 5}, x)); });
  CHECK(y.shape() == Shape{2, 2, 12, 10});
  CHECK(y.to_host() == conv_transpose2d(back.tensor({2, 4, 6, 5}, x), back.weight("weight", {4, 2, 3, 3}),
                                        back.weight("bias", {2}), {.stride = 2, .padding = 1, .output_padding = 1})
                           .to_host());
  CHECK_THAT(coded_message_of([] { Conv2d("layer", 4, 6, 2, {.groups = 4}); }),
             Contains("64: ") && Contains("4 groups"));
}

TEST_CASE("cross attention sees the tokens of another sequence alone") {
  Alone<CrossAttention> cross(CrossAttentionOptions{.width = 8, .heads = 4, .context_width = 6, .kv_heads = 2});
  const Values x = normal({1, 3, 8}, "x").values, seen = normal({1, 5, 6}, "seen").values;
  const Tensor y = cross.evaluate([&] {
    return cross.layer(cross.tensor({1, 3, 8}, x), cross.tensor({1, 5, 6}, seen));
  });
  const auto linear = [&](const std::string& name, const Values& in, std::int64_t width) {
    return ref::linear(in, cross.weights.at("layer." + name + ".weight"), &cross.weights.at("layer." + name + ".bias"),
                       width);
  };
  const Values q = linear("q", x, 8),
               kv = linear("kv", seen, 6);  // (3, 4 heads, 2), (5, keys then values of 2 heads, 2)
  Values gathered;
  for (std::size_t t = 0; t < 3; ++t) {
    for (std::size_t head = 0; head < 4; ++head) {
      double sum = 0, left = 0, right = 0;
      for (std::size_t s = 0; s < 5; ++s) {
        const double* const key = &kv[s * 8 + head / 2 * 2];
        const double share =
            std::exp((q[t * 8 + head * 2] * key[0] + q[t * 8 + head * 2 + 1] * key[1]) / std::sqrt(2.0));
        sum += share, left += share * key[4], right += share * key[5];
      }
      gathered.insert(gathered.end(), {left / sum, right / sum});
    }
  }
  check_close("y", y.to_host(), linear("out", gathered, 8), 2e-6);
}

TEST_CASE("parameters of a module are visited once each, counted, and frozen together") {
  Mlp mlp("mlp", {.width = 4, .hidden = 8});
  std::vector<std::string> names;
  for_each_parameter(mlp, [&](const Parameter& parameter) { names.push_back(parameter.name()); });
  CHECK(names == std::vector<std::string>{"mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias"});
  CHECK(parameter_count(mlp) == 2 * 32 + 8 + 4);
  set_trainable(*mlp.children()[0], false);
  CHECK(parameter_count(mlp, true) == 32 + 4);
}

}  // namespace zs::test::layers_test
