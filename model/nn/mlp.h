#pragma once

#include "model/nn/feed_forward.h"
#include "model/nn/linear.h"

namespace zs {

/// Activation of an MLP's hidden elements. swiglu, geglu_tanh: silu, or gelu, of half of them times the other half
/// (Shazeer 2020); clamped_swiglu: gpt-oss's (OpenAI 2025), g sigmoid(1.702 g) (u + 1) with g at most 7 and u within 7
/// of 0.
enum class Activation : std::uint8_t { gelu_tanh, gelu_erf, relu, swiglu, geglu_tanh, clamped_swiglu };

/// True if the activation takes two elements, a gate's and another, for each that it gives.
constexpr bool is_gated(Activation activation) {
  return activation == Activation::swiglu || activation == Activation::geglu_tanh ||
         activation == Activation::clamped_swiglu;
}
/// (..., 2 F) -> (..., F): a gated activation of the gates, which come first, and the others.
Tensor gated(const Tensor& x, Activation activation);

/// Options of Mlp.
struct MlpOptions {
  std::int64_t width = 0, hidden = 0;
  Activation activation = Activation::gelu_tanh;
  bool has_bias = true;
  Init down_init = {.normal_std = kWeightDeviation};
};

/// Two products with an activation in between: "up", or, where that is gated, "gate_up" of twice the hidden size, the
/// gate's rows first; "down".
class Mlp : public Layer<Mlp, FeedForward> {
 public:
  Mlp(std::string path, const MlpOptions& options);

  /// (..., C) -> (..., C)
  Tensor forward(const Tensor& x) { return last(body(x)); }
  /// (..., C) -> (..., hidden) -> (..., C)
  Tensor body(const Tensor& x) override;
  Tensor last(const Tensor& hidden) override;

  /// True if its first product is "gate_up".
  bool is_gated() const { return zs::is_gated(activation_); }

 private:
  Activation activation_;
  Linear &up_, &down_;
};

}  // namespace zs
