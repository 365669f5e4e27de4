#pragma once

#include <vector>

#include "model/nn/module.h"

namespace zs {

/// Options of Lstm and Gru.
struct RecurrentOptions {
  std::int64_t layers = 1;  ///< each reads what the one before it gives
  bool has_bias = true;
};

/// Layers that read a sequence token by token. Parameters are PyTorch's, by name and shape: of layer n "weight_ih_ln"
/// (gates H, in), "weight_hh_ln" (gates H, H), "bias_ih_ln" and "bias_hh_ln" (gates H), which begin uniform between
/// -1 / sqrt(H) and that. Biases do not decay.
class Recurrent : public Module {
 public:
  std::int64_t hidden() const { return hidden_; }

 protected:
  explicit Recurrent(std::string path) : Module(std::move(path)) {}
  void add_layers(std::int64_t gates, std::int64_t in, std::int64_t hidden, const RecurrentOptions& options);

  struct Parameters {
    Parameter &by_input, &by_state;
    Parameter *input_bias, *state_bias;  // null: none
  };
  /// Products of all tokens with by_input, (T, B, gates H), of x (B, T, in).
  Tensor of_inputs(const Parameters& layer, const Tensor& x) const;
  /// UsageError unless x is (B, T, in), and a state (layers, B, H) or empty.
  void check(const char* what, const Tensor& x, const std::vector<Tensor>& states) const;
  /// A layer's part of a state, (B, H); zeros where it is empty.
  Tensor first_of(const Tensor& state, std::size_t layer, const Tensor& x) const;

  std::int64_t in_ = 0, hidden_ = 0;
  std::vector<Parameters> layers_;
};

/// State of an LSTM after the last token, or before the first: each (layers, B, H), or empty for zeros.
struct LstmState {
  Tensor h, c;
};
/// Output of an LSTM: h of the last layer, (B, T, H), and the state after the last token.
struct LstmResult {
  Tensor outputs;
  LstmState state;
};

/// Hochreiter, Schmidhuber 1997, with gates in the order input, forget, cell, output.
class Lstm : public Layer<Lstm, Recurrent> {
 public:
  Lstm(std::string path, std::int64_t in, std::int64_t hidden, const RecurrentOptions& options = {});

  /// x (B, T, in), T at least 1.
  LstmResult forward(const Tensor& x, const LstmState& before = {});
};

/// Output of a GRU: h of the last layer, (B, T, H), and of each layer after the last token, (layers, B, H).
struct GruResult {
  Tensor outputs, state;
};

/// Cho et al. 2014 as PyTorch has it, with gates in the order reset, update, new.
class Gru : public Layer<Gru, Recurrent> {
 public:
  Gru(std::string path, std::int64_t in, std::int64_t hidden, const RecurrentOptions& options = {});

  /// x (B, T, in), T at least 1; before: (layers, B, H), or empty for zeros.
  GruResult forward(const Tensor& x, const Tensor& before = {});
};

}  // namespace zs
