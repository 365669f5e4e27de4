#include "model/nn/recurrent.h"

#include <cmath>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

/// Token t of (T, B, C), as (B, C).
Tensor token(const Tensor& x, std::int64_t t) { return x.rows(t, 1).reshape({x.shape()[1], x.shape()[2]}); }

}  // namespace

void Recurrent::add_layers(std::int64_t gates, std::int64_t in, std::int64_t hidden, const RecurrentOptions& options) {
  if (in < 1 || hidden < 1 || options.layers < 1)
    throw UsageError(fmt::format("recurrent module \"{}\" of {} layers, {} inputs and {} hidden elements", path(),
                                 options.layers, in, hidden),
                     "all are at least 1");
  in_ = in;
  hidden_ = hidden;
  const Init init{.uniform_bound = 1 / std::sqrt(static_cast<float>(hidden))};
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    const auto add = [&](const char* name, const Shape& shape, bool has_decay) -> Parameter& {
      return add_parameter(fmt::format("{}_l{}", name, layer), shape, init, has_decay);
    };
    Parameter& by_input = add("weight_ih", {gates * hidden, layer == 0 ? in : hidden}, true);
    Parameter& by_state = add("weight_hh", {gates * hidden, hidden}, true);
    Parameter* const input_bias = options.has_bias ? &add("bias_ih", {gates * hidden}, false) : nullptr;
    Parameter* const state_bias = options.has_bias ? &add("bias_hh", {gates * hidden}, false) : nullptr;
    layers_.push_back({by_input, by_state, input_bias, state_bias});
  }
}

Tensor Recurrent::of_inputs(const Parameters& layer, const Tensor& x) const {
  return transpose(linear(x, layer.by_input, layer.input_bias), 0, 1);
}

void Recurrent::check(const char* what, const Tensor& x, const std::vector<Tensor>& states) const {
  if (!x || x.shape().rank() != 3 || x.shape()[1] < 1 || x.shape()[2] != in_)
    throw UsageError(fmt::format("{} \"{}\" of {}", what, path(), x ? x.describe() : "an empty tensor"),
                     fmt::format("give (batch, tokens, {}), of at least one token", in_));
  const Shape shape{std::ssize(layers_), x.shape()[0], hidden_};
  for (const Tensor& state : states)
    if (state && (state.shape() != shape || state.dtype() != x.dtype()))
      throw UsageError(fmt::format("{} \"{}\" of {} with a state {}", what, path(), x.describe(), state.describe()),
                       fmt::format("give {} {}, or an empty tensor for zeros", name_of(x.dtype()), shape.str()));
}

Tensor Recurrent::first_of(const Tensor& state, std::size_t layer, const Tensor& x) const {
  const std::int64_t batch = x.shape()[0];
  if (!state) return Tensor::zeros(x.context(), {batch, hidden_}, x.dtype());
  return token(state, static_cast<std::int64_t>(layer));
}

Lstm::Lstm(std::string path, std::int64_t in, std::int64_t hidden, const RecurrentOptions& options)
    : Layer(std::move(path)) {
  add_layers(4, in, hidden, options);
}

LstmResult Lstm::forward(const Tensor& given, const LstmState& before) {
  Tensor x = input(given);
  check("LSTM", x, {before.h, before.c});
  std::vector<Tensor> last_h, last_c;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const Tensor inputs = of_inputs(layers_[layer], x);
    Tensor h = first_of(before.h, layer, x), c = first_of(before.c, layer, x);
    std::vector<Tensor> outputs;
    for (std::int64_t t = 0; t < x.shape()[1]; ++t) {
      const Tensor gates = token(inputs, t) + linear(h, layers_[layer].by_state, layers_[layer].state_bias);
      const auto gate = [&](int i) { return slice(gates, 1, i * hidden_, hidden_); };
      c = sigmoid(gate(1)) * c + sigmoid(gate(0)) * tanh(gate(2));
      h = sigmoid(gate(3)) * tanh(c);
      outputs.push_back(h);
    }
    last_h.push_back(h), last_c.push_back(c);
    x = stack(outputs, 1);
  }
  return {output(x), {stack(last_h, 0), stack(last_c, 0)}};
}

Gru::Gru(std::string path, std::int64_t in, std::int64_t hidden, const RecurrentOptions& options)
    : Layer(std::move(path)) {
  add_layers(3, in, hidden, options);
}

GruResult Gru::forward(const Tensor& given, const Tensor& before) {
  Tensor x = input(given);
  check("GRU", x, {before});
  std::vector<Tensor> last;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const Tensor inputs = of_inputs(layers_[layer], x);
    Tensor h = first_of(before, layer, x);
    std::vector<Tensor> outputs;
    for (std::int64_t t = 0; t < x.shape()[1]; ++t) {
      const Tensor seen = token(inputs, t), own = linear(h, layers_[layer].by_state, layers_[layer].state_bias);
      const auto gate = [&](const Tensor& of, int i) { return slice(of, 1, i * hidden_, hidden_); };
      const Tensor reset = sigmoid(gate(seen, 0) + gate(own, 0)), keep = sigmoid(gate(seen, 1) + gate(own, 1));
      const Tensor fresh = tanh(gate(seen, 2) + reset * gate(own, 2));
      h = fresh + keep * (h - fresh);
      outputs.push_back(h);
    }
    last.push_back(h);
    x = stack(outputs, 1);
  }
  return {output(x), stack(last, 0)};
}

}  // namespace zs
