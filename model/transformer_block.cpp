#include "model/transformer_block.h"

#include <cmath>

namespace zs {

Init residual_init(std::int64_t layers) { return {.normal_std = kWeightDeviation / std::sqrt(2.0f * static_cast<float>(layers))}; }

template <class Body, class Last>
Tensor TransformerBlock::run(Recompute part, const Tensor& x, const Body& body, const Last& last) {
  return recompute_ == part ? recompute({x}, body, last) : last(body({x}));
}

Tensor TransformerBlock::attention(const Tensor& x) {
  return run(
      Recompute::attention, x, [this](const Tensors& in) { return Tensors{attend(input(in[0]))}; },
      [this](const Tensors& in) { return project(in[0]); });
}

SumAndNorm TransformerBlock::sum_and_norm(const Tensor& x, const Tensor& attended) {
  if (!casts_input(x.dtype())) return add_and_normalise(x, attended);
  const Tensor sum = add(x, attended);
  return {sum, normalise(input(sum))};
}

Tensor TransformerBlock::forward(const Tensor& x) {
  const ForwardScope scope = enter();
  const auto up_to_hidden = [this](const Tensors& in) {
    const auto [sum, normalised] = sum_and_norm(in[0], output(attention(in[0])));
    return Tensors{sum, activate(normalised)};
  };
  return run(Recompute::block, x, up_to_hidden, [this](const Tensors& in) { return add(in[0], output(contract(in[1]))); });
}

}  // namespace zs
