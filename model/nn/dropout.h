#pragma once

#include "model/nn/module.h"

namespace zs {

/// Srivastava et al. 2014: in training each element is 0 with this probability, else x / (1 - probability); in an
/// evaluation all are as they are. Which elements are dropped follows from the seed, the step, the layer's path, and
/// the element's place among all samples of the step: the same when a function is recomputed, and at any number of
/// ranks.
class Dropout : public Layer<Dropout> {
 public:
  /// UsageError unless 0 <= probability < 1.
  Dropout(std::string path, float probability);

  /// The outermost dim is of samples. A layer that is called several times in a forward, as in a recurrent network,
  /// drops alike each time, unless `call` tells the times apart. UsageError where no sharded model contains it.
  Tensor forward(const Tensor& x, std::uint64_t call = 0);
  /// True if forward would change anything now.
  bool is_active() const;

 private:
  float probability_;
  std::uint64_t place_;
};

}  // namespace zs
