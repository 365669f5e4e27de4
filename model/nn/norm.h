#pragma once

#include "model/nn/module.h"
#include "runtime/tensor/ops.h"

namespace zs {

/// Normalises the last dim. A block names one of the two kinds below by NormKind.
class Norm : public Layer<Norm> {
 public:
  /// (..., C) -> (..., C)
  Tensor forward(const Tensor& x);
  /// x + residual, and its norm, in one pass where nothing has to be cast in between.
  SumAndNorm forward_sum(const Tensor& x, const Tensor& residual);
  bool serves_subclasses() const override { return true; }

 protected:
  /// `begin`: what "weight" begins at.
  Norm(std::string path, std::int64_t width, float eps, float begin);

  Parameter& weight_;
  float eps_;

 private:
  virtual Tensor normalize(const Tensor& x) = 0;
  virtual SumAndNorm add_and_normalize(const Tensor& x, const Tensor& residual) = 0;
};

/// Ba, Kiros, Hinton 2016: "weight" and "bias" (C), which begin at one and zero and do not decay.
class LayerNorm : public Norm {
 public:
  explicit LayerNorm(std::string path, std::int64_t width, float eps = 1e-5f);

 private:
  Tensor normalize(const Tensor& x) override;
  SumAndNorm add_and_normalize(const Tensor& x, const Tensor& residual) override;

  Parameter& bias_;
};

/// Zhang, Sennrich 2019: "weight" (C), which does not decay. Factors are offset + weight, and begin at one.
class RMSNorm : public Norm {
 public:
  explicit RMSNorm(std::string path, std::int64_t width, float eps = 1e-5f, float offset = 0);

  Parameter& weight() { return weight_; }
  float eps() const { return eps_; }
  float offset() const { return offset_; }

 private:
  Tensor normalize(const Tensor& x) override;
  SumAndNorm add_and_normalize(const Tensor& x, const Tensor& residual) override;

  float offset_;
};

/// LayerNorm, RMSNorm, or RMSNorm with the offset 1, whose weights are about zero, as Gemma has it.
enum class NormKind : std::uint8_t { layer, rms, rms_about_one };
/// Offset of an RMS norm's factors.
inline float offset_of(NormKind kind) { return kind == NormKind::rms_about_one ? 1.0f : 0.0f; }

/// A norm of that kind.
std::unique_ptr<Norm> make_norm(NormKind kind, std::string path, std::int64_t width, float eps);

}  // namespace zs
