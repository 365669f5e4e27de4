#include "model/nn/norm.h"

#include <cmath>

#include "runtime/base/usage_error.h"

namespace zs {

Norm::Norm(std::string path, std::int64_t width, float eps, float begin)
    : Layer(std::move(path)), weight_(add_parameter("weight", {width}, {.constant = begin}, false)), eps_(eps) {
  if (!(eps >= 0) || !std::isfinite(eps))
    throw UsageError(fmt::format("norm \"{}\" with an eps of {}", this->path(), eps), "give a small number above 0");
}

Tensor Norm::forward(const Tensor& x) { return normalize(input(x)); }

SumAndNorm Norm::forward_sum(const Tensor& x, const Tensor& residual) {
  const ForwardScope scope = enter();
  if (!casts_forward_input(x.dtype())) return add_and_normalize(x, residual);
  const Tensor sum = add(x, residual);
  return {sum, forward(sum)};
}

LayerNorm::LayerNorm(std::string path, std::int64_t width, float eps)
    : Norm(std::move(path), width, eps, 1), bias_(add_parameter("bias", {width}, {}, false)) {}

Tensor LayerNorm::normalize(const Tensor& x) { return layer_norm(x, weight_, bias_, eps_); }

SumAndNorm LayerNorm::add_and_normalize(const Tensor& x, const Tensor& residual) {
  return add_layer_norm(x, residual, weight_, bias_, eps_);
}

RMSNorm::RMSNorm(std::string path, std::int64_t width, float eps, float offset)
    : Norm(std::move(path), width, eps, 1 - offset), offset_(offset) {}

Tensor RMSNorm::normalize(const Tensor& x) { return rms_norm(x, weight_, eps_, offset_); }

SumAndNorm RMSNorm::add_and_normalize(const Tensor& x, const Tensor& residual) {
  return add_rms_norm(x, residual, weight_, eps_, offset_);
}

std::unique_ptr<Norm> make_norm(NormKind kind, std::string path, std::int64_t width, float eps) {
  if (kind == NormKind::layer) return std::make_unique<LayerNorm>(std::move(path), width, eps);
  return std::make_unique<RMSNorm>(std::move(path), width, eps, offset_of(kind));
}

}  // namespace zs
