#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/module.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/recompute.h"

namespace zs {

/// What a block computes again in backward instead of keeping it. With C the width, a token's activations in a block of GPT-2 are 16 C
/// elements and some statistics: the input and a sum (x, attended), two norms, qkv (3), attention's output, and the MLP before and after
/// GELU (4 each).
enum class Recompute : std::uint8_t {
  none,       ///< nothing: all are kept
  attention,  ///< the first norm, qkv and attention's output (of GPT-2 5 C, and the statistics): the rest is kept
  block,      ///< all: the block's input (C) is kept
};

/// Weights are normal with this deviation.
inline constexpr float kWeightDeviation = 0.02f;
/// Those that write to the residual stream: scaled by 1 / sqrt(2 layers), as GPT-2's are.
Init residual_init(std::int64_t layers);

/// A pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)). What the four parts are a derived class says; what is
/// recomputed, and what is cast on the way in and out, is said here.
class TransformerBlock : public Module {
 public:
  bool is_block() const override { return true; }
  /// (B, T, C) -> (B, T, C)
  Tensor forward(const Tensor& x);
  void set_recompute(Recompute recompute) { recompute_ = recompute; }

 protected:
  explicit TransformerBlock(std::string path) : Module(std::move(path)) {}

 private:
  using Tensors = std::vector<Tensor>;
  /// The norm, queries, keys and values, and attention over them: (B, T, C) -> (B, T, C).
  virtual Tensor attend(const Tensor& x) = 0;
  /// The projection behind it.
  virtual Tensor project(const Tensor& attended) = 0;
  /// The MLP's norm: (B, T, C) -> (B, T, C).
  virtual Tensor normalise(const Tensor& x) = 0;
  /// x + attended, and its norm, in one pass.
  virtual SumAndNorm add_and_normalise(const Tensor& x, const Tensor& attended) = 0;
  /// The MLP's hidden activations: (B, T, C) -> (B, T, hidden).
  virtual Tensor activate(const Tensor& normalised) = 0;
  /// (B, T, hidden) -> (B, T, C)
  virtual Tensor contract(const Tensor& hidden) = 0;

  /// last(body({x})), recomputed where the block recomputes this part.
  template <class Body, class Last>
  Tensor run(Recompute part, const Tensor& x, const Body& body, const Last& last);
  Tensor attention(const Tensor& x);
  /// x + attended, and its norm.
  SumAndNorm sum_and_norm(const Tensor& x, const Tensor& attended);

  Recompute recompute_ = Recompute::none;
};

}  // namespace zs
