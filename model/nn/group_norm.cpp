#include "model/nn/group_norm.h"

#include <cmath>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/reduction.h"

namespace zs {

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias, float eps) {
  const std::int64_t channels = weight ? weight.numel() : 0;
  if (!x || x.shape().rank() < 2 || x.shape()[1] != channels || groups < 1 || channels % groups != 0 || !bias ||
      bias.numel() != channels)
    throw UsageError(fmt::format("op group_norm of {} in {} groups, with {} weights",
                                 x ? x.describe() : "an empty tensor", groups, channels),
                     "give (batch, channels, ...), a weight and a bias for each channel, and groups that divide them");
  const std::int64_t batch = x.shape()[0];
  if (x.numel() == 0) return x * 1.0f;
  const Tensor in = cast(x, DType::f32).reshape({batch, groups, x.numel() / batch / groups});
  const Tensor centred = in - mean(in, {2}, true);
  const Tensor normalized = centred * rsqrt(mean(centred * centred, {2}, true) + eps);
  const auto of = [&](const Tensor& each) { return cast(each, DType::f32).reshape({channels, 1}); };
  const Tensor y = normalized.reshape({batch, channels, x.numel() / batch / channels}) * of(weight) + of(bias);
  return cast(y.reshape(x.shape()), x.dtype());
}

GroupNorm::GroupNorm(std::string path, std::int64_t groups, std::int64_t channels, float eps)
    : Layer(std::move(path)),
      groups_(groups),
      eps_(eps),
      weight_(add_parameter("weight", {channels}, {.constant = 1}, false)),
      bias_(add_parameter("bias", {channels}, {}, false)) {
  if (groups < 1 || channels < 1 || channels % groups != 0 || !(eps >= 0) || !std::isfinite(eps))
    throw UsageError(fmt::format("group norm \"{}\" of {} channels in {} groups with an eps of {}", this->path(),
                                 channels, groups, eps),
                     "groups divide the channels, and eps is not below 0");
}

Tensor GroupNorm::forward(const Tensor& x) {
  const Tensor in = input(x);
  return group_norm(in, groups_, as_tensor(in.context(), weight_), as_tensor(in.context(), bias_), eps_);
}

}  // namespace zs
