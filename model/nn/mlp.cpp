#include "model/nn/mlp.h"

#include <limits>

namespace zs {

Tensor gated(const Tensor& x, Activation activation) {
  if (activation == Activation::swiglu) return swiglu(x);
  if (activation == Activation::geglu_tanh) return geglu(x);
  constexpr float kLimit = 7, kSlope = 1.702f;
  const std::int64_t width = x.shape()[-1] / 2;
  const Tensor gate = clamp(slice(x, -1, 0, width), std::numeric_limits<float>::lowest(), kLimit),
               up = clamp(slice(x, -1, width, width), -kLimit, kLimit);
  return (up + 1) * (gate * sigmoid(gate * kSlope));
}

Mlp::Mlp(std::string path, const MlpOptions& options)
    : Layer(std::move(path)),
      activation_(options.activation),
      up_(make_child<Linear>(is_gated() ? "gate_up" : "up", options.width, (is_gated() ? 2 : 1) * options.hidden,
                             LinearOptions{.has_bias = options.has_bias})),
      down_(make_child<Linear>("down", options.hidden, options.width,
                               LinearOptions{.has_bias = options.has_bias, .init = options.down_init})) {
  if (is_gated()) up_.weight().set_matrix_rows({options.hidden, options.hidden});
  if (is_gated()) up_.set_row_blocks({options.hidden, options.hidden});
}

Tensor Mlp::body(const Tensor& x) {
  const ForwardScope scope = enter();
  if (is_gated()) return gated(up_(x), activation_);
  if (activation_ == Activation::relu) return relu(up_(x));
  return up_.forward_gelu(x, activation_ == Activation::gelu_erf ? GeluKind::erf : GeluKind::tanh);
}

Tensor Mlp::last(const Tensor& hidden) {
  const ForwardScope scope = enter();
  return output(down_(hidden));
}

}  // namespace zs
