#pragma once

#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// Configuration of Muon.
struct MuonConfig {
  float momentum = 0.95f;
  bool nesterov = true;
  /// Patterns (NamePattern) of the parameters with two dims that it updates; each pattern must match one. Embeddings
  /// and heads are none of them as a rule.
  std::vector<std::string> matrices = {"*"};
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;  ///< AdamW's, which updates the rest
  float weight_decay = 0.1f;
  float clip = 1.0f;  ///< as in OptimizerOptions, like the next three
  bool order_free = false;
  std::vector<ParameterGroup> groups = {};
  float average = 0;
};

/// Muon (Jordan et al. 2024): the momentum m = momentum m + g of a matrix (rows, cols), which is a parameter or one of
/// those that it is made of (Parameter::matrix_rows; padding stays as it is), with nesterov g + momentum m,
/// is made orthogonal by five steps of a Newton-Schulz iteration in f32, and w -= lr (0.2 sqrt(max(rows, cols)) O +
/// weight_decay w), which has steps of AdamW's length (Liu et al. 2025), so that one learning rate is both's. A matrix
/// that is sharded is made so by one of the ranks that share its masters, which has it whole meanwhile; a matrix's bits
/// do not depend on the ranks. AdamW updates all other parameters, and alone has a second moment of them.
class Muon final : public Optimizer {
 public:
  /// Collective. UsageError where the options make no sense, or a pattern has no matrix.
  Muon(Executor& executor, const MuonConfig& config);
  ~Muon() override { settle(); }

 private:
  struct Matrix;
  UnitUpdate unit_update() const override;
  bool copies() const override { return true; }
  void update_apart(std::vector<Apart> units) override;

  std::vector<Matrix> matrices(const std::vector<Apart>& units);
  void share(std::vector<Matrix>& matrices);
  Memory make_scalars();
  void add_momentum(const std::vector<Matrix>& matrices, const Buffer& step);
  void orthogonalise(const std::vector<Matrix>& matrices);
  void apply(const std::vector<Matrix>& matrices, const Buffer& steps);

  MuonConfig config_;
};

}  // namespace zs
