#pragma once

#include "model/nn/module.h"

namespace zs {

/// x (B, C, ...) normalised over each sample's groups of C / groups channels and all that comes after them, times
/// weight (C), plus bias (C); computed in f32 (Wu, He 2018).
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias, float eps = 1e-5f);

/// group_norm of "weight" and "bias" (C), which begin at one and zero and do not decay. With as many groups as channels
/// it is an instance norm.
class GroupNorm : public Layer<GroupNorm> {
 public:
  GroupNorm(std::string path, std::int64_t groups, std::int64_t channels, float eps = 1e-5f);

  /// (B, C, ...) -> (B, C, ...)
  Tensor forward(const Tensor& x);

 private:
  std::int64_t groups_;
  float eps_;
  Parameter &weight_, &bias_;
};

}  // namespace zs
