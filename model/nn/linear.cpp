#include "model/nn/linear.h"

namespace zs {

Linear::Linear(std::string path, std::int64_t in, std::int64_t out, const LinearOptions& options)
    : Layer(std::move(path)),
      weight_(add_parameter("weight", {out, in}, options.init, true)),
      bias_(options.has_bias ? &add_parameter("bias", {out}, {}, false) : nullptr) {}

Tensor Linear::forward(const Tensor& x) {
  const Tensor in = input(x), y = linear(in, weight_, bias_);
  return is_adapted() ? add_adapters(y, in, adapters_) : y;
}

Tensor Linear::forward_gelu(const Tensor& x, GeluKind kind) {
  const ForwardScope scope = enter();
  if (is_adapted()) return gelu(forward(x), kind);
  return linear_gelu(input(x), weight_, bias_, kind);
}

void Linear::add_adapter(LoraAdapter& adapter) { adapters_.push_back(&adapter); }

}  // namespace zs
