#pragma once

#include <functional>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace zs {

/// Function that may be recomputed, from tensors to one tensor.
using TensorFunction = std::function<Tensor(const std::vector<Tensor>& inputs)>;
/// Function that may be recomputed, from tensors to several.
using TensorsFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

/// function(inputs), of which only the inputs are kept for backward (activation checkpointing: Chen et al. 2016,
/// arXiv:1604.06174). It runs now, without being recorded; when backward arrives at its output it runs again, is
/// recorded, and backward goes on through what was recorded. Gradients are the same bits as without, and calls nest.
///
/// The function is kept until then, and must do the same work both times: anything it refers to outlives the backward
/// and does not change. A UsageError where ops that gradients flow through come with other names, shapes or parameters,
/// or in another order. Parameters it may use freely; a ForwardScope inside it has no effect in the second run but that
/// its unit is unsharded. A tensor that wants a gradient must come in through `inputs` (at least one tensor). Where
/// nothing is recorded it is a plain call.
Tensor recompute(std::vector<Tensor> inputs, TensorFunction function);

/// Keeper of the first input of recomputed functions until their backward. Owned by the caller; it outlives the
/// backward.
class InputKeeper {
 public:
  virtual ~InputKeeper() = default;
  /// The forward of a recomputed function begins: what the last one kept is read no more until its backward.
  virtual void before_forward() = 0;
  /// Takes the input of the function that was begun last. What it gives is called once, when that backward arrives, and
  /// gives the same elements, which the compute stream may read then.
  virtual std::function<Tensor()> keep(Tensor input) = 0;
};

/// last(body(inputs)), the same, where no backward needs what `last` computes (a product, a sum, a reshape): in the
/// second run `last` is recorded, but its launches are left out. An error when a backward keeps any of it after all.
/// `keeper`: has the first input meanwhile; none: it stays where it is.
Tensor recompute(std::vector<Tensor> inputs, TensorsFunction body, TensorFunction last, InputKeeper* keeper = nullptr);

}  // namespace zs
