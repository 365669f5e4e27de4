#pragma once

#include "model/nn/module.h"

namespace zs {

/// The part of a transformer block that works on each token by itself: an Mlp, or a Mixture of experts.
class FeedForward : public Module {
 public:
  /// The two halves of a forward, for who recomputes the first: (..., C) -> what no backward of `last` keeps -> (...,
  /// C).
  virtual Tensor body(const Tensor& x) = 0;
  virtual Tensor last(const Tensor& hidden) = 0;

 protected:
  using Module::Module;
};

}  // namespace zs
