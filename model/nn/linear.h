#pragma once

#include <vector>

#include "model/nn/lora.h"
#include "model/nn/module.h"
#include "runtime/tensor/ops.h"

namespace zs {

class Communicator;

/// Weights are normal with this deviation.
inline constexpr float kWeightDeviation = 0.02f;

/// Options of Linear.
struct LinearOptions {
  bool has_bias = true;
  Init init = {.normal_std = kWeightDeviation};
};

/// y = x weight^T + bias: "weight" (out, in), and "bias" (out), which begins at zero and does not decay. Adapters may
/// add to it.
///
/// Its unit's Partition may cut it over an axis whose ranks read the same data (Shoeybi et al. 2019): weight and bias
/// on dim 0, then x is alike on the ranks and each has some of y's last dim; or the weight alone on dim 1, then each
/// has some of x's last dim, y is alike, and the bias is added once. Sums over the ranks are of f32, the same bits on
/// each. The model then dies before its World. UsageError of a forward where the two are cut otherwise, the ranks read
/// different data, or adapters are on.
class Linear : public Layer<Linear> {
 public:
  Linear(std::string path, std::int64_t in, std::int64_t out, const LinearOptions& options = {});

  /// (..., in) -> (..., out)
  Tensor forward(const Tensor& x);
  /// gelu(forward(x)), in one pass where the back end has that.
  Tensor forward_gelu(const Tensor& x, GeluKind kind);

  /// Weight, for a head.
  Parameter& weight() { return weight_; }
  /// Says of which blocks the rows consist (Parameter::set_blocks), such as those of a gate and of the others: ranks
  /// then have their part of each. Called before the model is sharded.
  void set_row_blocks(const std::vector<std::int64_t>& blocks);
  /// Ranks that have the other parts; null where this one has all. UsageError as that of a forward.
  Communicator* find_ranks() const;
  /// Adds an adapter of rows that come after those of the adapter before. The block owns it.
  void add_adapter(LoraAdapter& adapter);
  const std::vector<LoraAdapter*>& adapters() const { return adapters_; }

 private:
  /// x for a part of the weight's rows.
  Tensor rows_input(Communicator& ranks, const Tensor& x) const;

  Parameter& weight_;
  Parameter* bias_;  // null: none
  bool is_adapted() const { return !adapters_.empty() && adapters_.front()->is_on(); }

  std::vector<LoraAdapter*> adapters_;
};

}  // namespace zs
