#pragma once

#include <vector>

#include "model/nn/lora.h"
#include "model/nn/module.h"
#include "runtime/tensor/ops.h"

namespace zs {

/// Weights are normal with this deviation.
inline constexpr float kWeightDeviation = 0.02f;

/// Options of Linear.
struct LinearOptions {
  bool has_bias = true;
  Init init = {.normal_std = kWeightDeviation};
};

/// y = x weight^T + bias: "weight" (out, in), and "bias" (out), which begins at zero and does not decay. Adapters may
/// add to it.
class Linear : public Layer<Linear> {
 public:
  Linear(std::string path, std::int64_t in, std::int64_t out, const LinearOptions& options = {});

  /// (..., in) -> (..., out)
  Tensor forward(const Tensor& x);
  /// gelu(forward(x)), in one pass where the back end has that.
  Tensor forward_gelu(const Tensor& x, GeluKind kind);

  /// Weight, for a head.
  Parameter& weight() { return weight_; }
  /// Adds an adapter of rows that come after those of the adapter before. The block owns it.
  void add_adapter(LoraAdapter& adapter);

 private:
  Parameter& weight_;
  Parameter* bias_;  // null: none
  bool is_adapted() const { return !adapters_.empty() && adapters_.front()->is_on(); }

  std::vector<LoraAdapter*> adapters_;
};

}  // namespace zs
