#pragma once

#include "model/nn/module.h"

namespace zs {

/// Results of batch_norm.
struct NormalizedBatch {
  Tensor y, mean, variance;  ///< mean, variance: (C) f32, of the batch, without gradients
};
/// x (B, C, ...) by its own statistics, times weight (C), plus bias (C); computed in f32.
NormalizedBatch batch_norm(const Tensor& x, Parameter& weight, Parameter& bias, float eps = 1e-5f);

/// Options of BatchNorm.
struct BatchNormOptions {
  float eps = 1e-5f;
  float momentum = 0.1f;  ///< running := (1 - momentum) running + momentum of this micro-batch
};

/// Ioffe, Szegedy 2015, over all dims but the second: "weight" and "bias" (C), which begin at one and zero and do not
/// decay, and the buffers "running_mean" and "running_var" (C), which checkpoints hold by these names. Training
/// normalises by the mean and the variance of this rank's micro-batch, however many ranks there are: a loss then
/// depends on how samples are cut. The running statistics take the mean of theirs over all ranks, in a small
/// all-reduce, and are the same on every rank; an evaluation normalises by them. Computed in f32.
class BatchNorm : public Layer<BatchNorm> {
 public:
  explicit BatchNorm(std::string path, std::int64_t channels, const BatchNormOptions& options = {});

  /// (B, C) or (B, C, ...) -> the same. UsageError where a training has but one element a channel, and outside of a
  /// sharded model.
  Tensor forward(const Tensor& x);

 private:
  void update(const Tensor& mean, const Tensor& variance, std::int64_t count);

  BatchNormOptions options_;
  Parameter &weight_, &bias_, &running_mean_, &running_var_;
};

}  // namespace zs
