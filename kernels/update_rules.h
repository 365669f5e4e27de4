#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/host_device.h"

/// Rules by which an optimizer updates one element, on every back end from this source, so that the bits are the same
/// everywhere.
namespace zs {

/// Scalars of the optimizer step, in device memory: kernels read them there, so that a captured step can be replayed.
struct StepScalars {
  float lr;
  float bias_correction1;  ///< 1 - beta1^t; of schedule-free AdamW c, the weight of the newest point in the average
  float bias_correction2;  ///< 1 - beta2^t
  float clip_coefficient;  ///< min(1, clip / (norm + 1e-6)); 1 without clipping
  float grad_norm;         ///< norm over the whole model, before clipping
  float skip;              ///< not 0: grad_norm is not finite, the optimizer leaves everything as it is
};

/// Updates of a parameter so far, in device memory: a step that is skipped, or fails, does not count.
struct UpdateCount {
  double updates;     ///< number of steps that have updated it: an integer
  double squared_lr;  ///< sum of the squares of their learning rates
};

/// Scalars of a step that follow from a parameter's UpdateCount before it. adamw: bias_correction1, 2 by beta1 and
/// beta2; schedule_free: c and the second by beta2; average: lr, 1 for the first update, then 1 - beta1. A step that is
/// skipped takes the weights as an average which has not begun.
struct StepCorrection {
  enum class Kind : std::uint8_t { none, adamw, schedule_free, average };
  Kind kind = Kind::none;
  float beta1 = 0, beta2 = 0;
};

/// base^exponent, by multiplications alone, so that the bits are the same everywhere.
ZS_HOST_DEVICE double power_of(double base, std::int64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 != 0) power *= base;
  return power;
}

/// `first`: has what follows from the norm, and may be `step`.
ZS_HOST_DEVICE void correct(StepScalars& step, const StepScalars& first, const UpdateCount& before,
                            const StepCorrection& by) {
  step.grad_norm = first.grad_norm;
  step.skip = first.skip;
  if (by.kind != StepCorrection::Kind::average) step.clip_coefficient = first.clip_coefficient;
  const auto next = static_cast<std::int64_t>(before.updates) + 1;
  const auto lr = static_cast<double>(step.lr);
  switch (by.kind) {
    case StepCorrection::Kind::none: return;
    case StepCorrection::Kind::average:
      step.lr = next == 1 ? 1.0f : 1.0f - by.beta1;
      if (next == 1) step.skip = 0;
      return;
    case StepCorrection::Kind::adamw:
      step.bias_correction1 = static_cast<float>(1.0 - power_of(static_cast<double>(by.beta1), next));
      break;
    case StepCorrection::Kind::schedule_free:
      step.bias_correction1 = lr == 0 ? 0.0f : static_cast<float>(lr * lr / (before.squared_lr + lr * lr));
      break;
  }
  step.bias_correction2 = static_cast<float>(1.0 - power_of(static_cast<double>(by.beta2), next));
}

ZS_HOST_DEVICE void count_update(UpdateCount& count, const StepScalars& step) {
  if (step.skip != 0) return;
  count.updates += 1;
  count.squared_lr += static_cast<double>(step.lr) * static_cast<double>(step.lr);
}

// Options of a rule. kNeedsM, kNeedsV: which moments a range must have; SGD has one or none.

/// Loshchilov, Hutter 2019, algorithm 2: g = grad * clip_coefficient; m, v updated; master -= lr * (m_hat /
/// (sqrt(v_hat) + eps) + weight_decay * master)
struct AdamWOptions {
  static constexpr bool kNeedsM = true, kNeedsV = true;
  float beta1, beta2, eps;
};

/// Sutskever et al. 2013: g = grad * clip_coefficient + weight_decay * master; m = momentum * m + g, or g where m is
/// empty; master -= lr * m, or lr * (g + momentum * m) with nesterov
struct SgdOptions {
  static constexpr bool kNeedsM = false, kNeedsV = false;
  float momentum;
  bool nesterov;
};

/// Chen et al. 2023: g = grad * clip_coefficient; master -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay *
/// master); m := beta2 * m + (1 - beta2) * g. The sign of 0 is 0.
struct LionOptions {
  static constexpr bool kNeedsM = true, kNeedsV = false;
  float beta1, beta2;
};

/// Schedule-free AdamW (Defazio et al. 2024, algorithm 1 with AdamW's step): the master is y, where gradients are
/// taken; m is z - y, so that z = y + m, and their average x = y - m (1 - beta1) / beta1. bias_correction1 of the
/// scalars is c, the weight of the new z in x. g = grad * clip_coefficient; v updated; s = g / (sqrt(v_hat) + eps) +
/// weight_decay * y; z -= lr * s; x := (1 - c) x + c z; y := (1 - beta1) z + beta1 x. beta1 > 0
struct ScheduleFreeOptions {
  static constexpr bool kNeedsM = true, kNeedsV = true;
  float beta1, beta2, eps;
};

ZS_HOST_DEVICE void adamw_moments(const AdamWOptions& options, const StepScalars& step, float grad, float& m,
                                  float& v) {
  const float g = grad * step.clip_coefficient;
  m = options.beta1 * m + (1.0f - options.beta1) * g;
  v = options.beta2 * v + (1.0f - options.beta2) * g * g;
}

// updated<kHasM>() changes the moments and returns the new master, of the one `before` and the gradient `grad` as
// reduced. A moment that the rule has not is not looked at.

template <bool kHasM>
ZS_HOST_DEVICE float updated(const AdamWOptions& options, const StepScalars& step, float weight_decay, float before,
                             float grad, float& m, float& v) {
  adamw_moments(options, step, grad, m, v);
  return before - step.lr * (m / step.bias_correction1 / (sqrtf(v / step.bias_correction2) + options.eps) +
                             weight_decay * before);
}

template <bool kHasM>
ZS_HOST_DEVICE float updated(const SgdOptions& options, const StepScalars& step, float weight_decay, float before,
                             float grad, float& m, float&) {
  const float g = grad * step.clip_coefficient + weight_decay * before;
  if constexpr (!kHasM) return before - step.lr * g;
  m = options.momentum * m + g;
  return before - step.lr * (options.nesterov ? g + options.momentum * m : m);
}

template <bool kHasM>
ZS_HOST_DEVICE float updated(const LionOptions& options, const StepScalars& step, float weight_decay, float before,
                             float grad, float& m, float&) {
  const float g = grad * step.clip_coefficient;
  const float mean = options.beta1 * m + (1.0f - options.beta1) * g;
  const float sign = mean > 0.0f ? 1.0f : mean < 0.0f ? -1.0f : 0.0f;
  m = options.beta2 * m + (1.0f - options.beta2) * g;
  return before - step.lr * (sign + weight_decay * before);
}

/// With m = z - y and k = 1 - beta1 (1 - c): y := y + c m - lr k s, m := (1 - c) (m - lr beta1 s).
template <bool kHasM>
ZS_HOST_DEVICE float updated(const ScheduleFreeOptions& options, const StepScalars& step, float weight_decay,
                             float before, float grad, float& m, float& v) {
  const float g = grad * step.clip_coefficient, c = step.bias_correction1, rest = 1.0f - c;
  v = options.beta2 * v + (1.0f - options.beta2) * g * g;
  const float move = step.lr * (g / (sqrtf(v / step.bias_correction2) + options.eps) + weight_decay * before);
  const float after = before + (c * m - (1.0f - options.beta1 * rest) * move);
  m = rest * (m - options.beta1 * move);
  return after;
}

/// One of the rules, with its options: a new one is a kind, a member of the union, a constructor and a case here.
struct UpdateRule {
  enum class Kind : std::uint8_t { adamw, sgd, lion, schedule_free };
  Kind kind;
  union {
    AdamWOptions adamw;
    SgdOptions sgd;
    LionOptions lion;
    ScheduleFreeOptions schedule_free;
  };
  UpdateRule(const AdamWOptions& options) : kind(Kind::adamw), adamw(options) {}  // NOLINT(google-explicit-constructor)
  UpdateRule(const SgdOptions& options) : kind(Kind::sgd), sgd(options) {}        // NOLINT(google-explicit-constructor)
  UpdateRule(const LionOptions& options) : kind(Kind::lion), lion(options) {}     // NOLINT(google-explicit-constructor)
  UpdateRule(const ScheduleFreeOptions& options)                                  // NOLINT(google-explicit-constructor)
      : kind(Kind::schedule_free), schedule_free(options) {}
};

/// body(options), of the rule's kind.
template <class Body>
ZS_HOST_DEVICE void with_update_rule(const UpdateRule& rule, const Body& body) {
  switch (rule.kind) {
    case UpdateRule::Kind::adamw: return body(rule.adamw);
    case UpdateRule::Kind::sgd: return body(rule.sgd);
    case UpdateRule::Kind::lion: return body(rule.lion);
    case UpdateRule::Kind::schedule_free: return body(rule.schedule_free);
  }
}

}  // namespace zs
