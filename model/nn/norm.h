#pragma once

#include "model/module.h"
#include "runtime/tensor/ops.h"

namespace zs {

/// Normalises the last dim. A block names one of the two kinds below by NormKind.
class Norm : public Layer<Norm> {
 public:
  /// (..., C) -> (..., C)
  Tensor forward(const Tensor& x) { return normalize(input(x)); }
  /// x + residual, and its norm, in one pass where nothing has to be cast in between.
  SumAndNorm forward_sum(const Tensor& x, const Tensor& residual) {
    const ForwardScope scope = enter();
    if (!casts_forward_input(x.dtype())) return add_and_normalize(x, residual);
    const Tensor sum = add(x, residual);
    return {sum, forward(sum)};
  }

 protected:
  Norm(std::string path, std::int64_t width, float eps)
      : Layer(std::move(path)), weight_(add_parameter("weight", {width}, {.constant = 1}, false)), eps_(eps) {}

  Parameter& weight_;
  float eps_;

 private:
  virtual Tensor normalize(const Tensor& x) = 0;
  virtual SumAndNorm add_and_normalize(const Tensor& x, const Tensor& residual) = 0;
};

/// Ba, Kiros, Hinton 2016: "weight" and "bias" (C), which begin at one and zero and do not decay.
class LayerNorm : public Norm {
 public:
  explicit LayerNorm(std::string path, std::int64_t width, float eps = 1e-5f)
      : Norm(std::move(path), width, eps), bias_(add_parameter("bias", {width}, {}, false)) {}

 private:
  Tensor normalize(const Tensor& x) override { return layer_norm(x, weight_, bias_, eps_); }
  SumAndNorm add_and_normalize(const Tensor& x, const Tensor& residual) override {
    return add_layer_norm(x, residual, weight_, bias_, eps_);
  }

  Parameter& bias_;
};

/// Zhang, Sennrich 2019: "weight" (C), which begins at one and does not decay.
class RMSNorm : public Norm {
 public:
  explicit RMSNorm(std::string path, std::int64_t width, float eps = 1e-5f) : Norm(std::move(path), width, eps) {}

  Parameter& weight() { return weight_; }
  float eps() const { return eps_; }

 private:
  Tensor normalize(const Tensor& x) override { return rms_norm(x, weight_, eps_); }
  SumAndNorm add_and_normalize(const Tensor& x, const Tensor& residual) override {
    return add_rms_norm(x, residual, weight_, eps_);
  }
};

/// LayerNorm or RMSNorm.
enum class NormKind : std::uint8_t { layer, rms };

/// A norm of that kind.
inline std::unique_ptr<Norm> make_norm(NormKind kind, std::string path, std::int64_t width, float eps) {
  if (kind == NormKind::rms) return std::make_unique<RMSNorm>(std::move(path), width, eps);
  return std::make_unique<LayerNorm>(std::move(path), width, eps);
}

}  // namespace zs
