#pragma once

#include <math.h>

#include "kernels/host_device.h"

/// Rules by which an optimizer updates one element, on every back end from this source, so that the bits are the same
/// everywhere.
namespace zs {

/// Scalars of the optimizer step, in device memory: kernels read them there, so that a captured step can be replayed.
struct StepScalars {
  float lr;
  float bias_correction1;  ///< 1 - beta1^t
  float bias_correction2;  ///< 1 - beta2^t
  float clip_coefficient;  ///< min(1, clip / (norm + 1e-6)); 1 without clipping
  float grad_norm;         ///< norm over the whole model, before clipping
  float skip;              ///< not 0: grad_norm is not finite, the optimizer leaves everything as it is
};

struct AdamWOptions {
  float beta1, beta2, eps;
};

struct SgdOptions {
  float momentum;
  bool nesterov;
};

struct LionOptions {
  float beta1, beta2;
};

ZS_HOST_DEVICE void adamw_moments(const AdamWOptions& options, const StepScalars& step, float grad, float& m,
                                  float& v) {
  const float g = grad * step.clip_coefficient;
  m = options.beta1 * m + (1.0f - options.beta1) * g;
  v = options.beta2 * v + (1.0f - options.beta2) * g * g;
}

/// Each changes the moments and returns the new master, of the one `before` and the gradient `grad` as reduced.
ZS_HOST_DEVICE float adamw_rule(const AdamWOptions& options, const StepScalars& step, float weight_decay, float before,
                                float grad, float& m, float& v) {
  adamw_moments(options, step, grad, m, v);
  return before - step.lr * (m / step.bias_correction1 / (sqrtf(v / step.bias_correction2) + options.eps) +
                             weight_decay * before);
}

/// Rule of SGD. Without a moment `m` is not looked at.
template <bool kHasMoment>
ZS_HOST_DEVICE float sgd_rule(const SgdOptions& options, const StepScalars& step, float weight_decay, float before,
                              float grad, float& m) {
  const float g = grad * step.clip_coefficient + weight_decay * before;
  if constexpr (!kHasMoment) return before - step.lr * g;
  m = options.momentum * m + g;
  return before - step.lr * (options.nesterov ? g + options.momentum * m : m);
}

ZS_HOST_DEVICE float lion_rule(const LionOptions& options, const StepScalars& step, float weight_decay, float before,
                               float grad, float& m) {
  const float g = grad * step.clip_coefficient;
  const float mean = options.beta1 * m + (1.0f - options.beta1) * g;
  const float sign = mean > 0.0f ? 1.0f : mean < 0.0f ? -1.0f : 0.0f;
  m = options.beta2 * m + (1.0f - options.beta2) * g;
  return before - step.lr * (sign + weight_decay * before);
}

}  // namespace zs
