#pragma once

#include "model/nn/linear.h"

namespace zs {

/// Activation of an MLP's hidden elements. swiglu: silu of half of them times the other half (Shazeer 2020).
enum class Activation : std::uint8_t { gelu_tanh, gelu_erf, relu, swiglu };

/// Options of Mlp.
struct MlpOptions {
  std::int64_t width = 0, hidden = 0;
  Activation activation = Activation::gelu_tanh;
  bool has_bias = true;
  Init down_init = {.normal_std = kWeightDeviation};
};

/// Two products with an activation in between: "up", or, with swiglu, "gate_up" of twice the hidden size, the gate's
/// rows first; "down".
class Mlp : public Layer<Mlp> {
 public:
  Mlp(std::string path, const MlpOptions& options);

  /// (..., C) -> (..., C)
  Tensor forward(const Tensor& x) { return down_proj(up_proj(x)); }
  /// The two halves of forward, for who recomputes the first: (..., C) -> (..., hidden) -> (..., C).
  Tensor up_proj(const Tensor& x);
  Tensor down_proj(const Tensor& hidden);

 private:
  bool is_gated() const { return activation_ == Activation::swiglu; }

  Activation activation_;
  Linear &up_, &down_;
};

}  // namespace zs
