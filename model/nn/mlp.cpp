#include "model/nn/mlp.h"

namespace zs {

Mlp::Mlp(std::string path, const MlpOptions& options)
    : Layer(std::move(path)),
      activation_(options.activation),
      up_(make_child<Linear>(is_gated() ? "gate_up" : "up", options.width, (is_gated() ? 2 : 1) * options.hidden,
                             LinearOptions{.has_bias = options.has_bias})),
      down_(make_child<Linear>("down", options.hidden, options.width,
                               LinearOptions{.has_bias = options.has_bias, .init = options.down_init})) {
  if (is_gated()) up_.weight().set_matrix_rows({options.hidden, options.hidden});
}

Tensor Mlp::up_proj(const Tensor& x) {
  const ForwardScope scope = enter();
  if (is_gated()) return swiglu(up_(x));
  if (activation_ == Activation::relu) return relu(up_(x));
  return up_.forward_gelu(x, activation_ == Activation::gelu_erf ? GeluKind::erf : GeluKind::tanh);
}

Tensor Mlp::down_proj(const Tensor& hidden) {
  const ForwardScope scope = enter();
  return output(down_(hidden));
}

}  // namespace zs
