#include "runtime/tensor/losses.h"

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/pointwise.h"
#include "runtime/tensor/statistics.h"
#include "runtime/tensor/values.h"

namespace zs {
namespace {

Tensor wide_of(const Tensor& x) { return cast(x, DType::f32); }

void require_pair(const char* op, const Tensor& a, const Tensor& b) {
  require_float(op, "predictions", a);
  require_float(op, "targets", b);
  if (a.shape() != b.shape())
    throw UsageError(fmt::format("op {} of {} and {}", op, a.describe(), b.describe()), "reshape one of them");
}

Tensor reduced_loss(const Tensor& losses, LossReduction reduction) {
  if (reduction == LossReduction::none) return losses;
  return reduction == LossReduction::sum ? sum(losses) : mean(losses);
}

Tensor summed_over_classes(const char* op, const Tensor& products) {
  if (products.shape().rank() == 0)
    throw UsageError(fmt::format("op {} of a scalar", op), "give rows: the last dim is of classes");
  return sum(products, {-1});
}

}  // namespace

Tensor l1_loss(const Tensor& a, const Tensor& b, LossReduction reduction) {
  require_pair("l1_loss", a, b);
  return reduced_loss(abs(wide_of(a) - wide_of(b)), reduction);
}

Tensor smooth_l1_loss(const Tensor& a, const Tensor& b, float beta, LossReduction reduction) {
  require_pair("smooth_l1_loss", a, b);
  if (!(beta > 0))
    throw UsageError(fmt::format("op smooth_l1_loss: a beta of {}", beta), "give one above 0, or l1_loss");
  // With c the distance up to beta: c^2 / (2 beta) + (distance - c)
  const Tensor distance = abs(wide_of(a) - wide_of(b)), near = where(lt(distance, beta), distance, beta);
  return reduced_loss(square(near) * (0.5f / beta) + (distance - near), reduction);
}

Tensor bce_with_logits(const Tensor& logits, const Tensor& targets, float positive_weight, LossReduction reduction) {
  require_pair("bce_with_logits", logits, targets);
  const Tensor x = wide_of(logits), t = wide_of(targets);
  if (positive_weight == 1) return reduced_loss(softplus(x) - t * x, reduction);
  return reduced_loss(t * softplus(-x) * positive_weight + (1.0f - t) * softplus(x), reduction);
}

Tensor kl_div(const Tensor& log_probabilities, const Tensor& targets, LossReduction reduction) {
  require_pair("kl_div", log_probabilities, targets);
  const Tensor p = wide_of(targets), is_above = gt(p, 0.0f), logarithm = log(where(is_above, p, 1.0f));
  const Tensor parts = where(is_above, p * (logarithm - wide_of(log_probabilities)), 0.0f);
  return reduced_loss(summed_over_classes("kl_div", parts), reduction);
}

Tensor soft_cross_entropy(const Tensor& logits, const Tensor& probabilities, LossReduction reduction) {
  require_pair("soft_cross_entropy", logits, probabilities);
  if (logits.shape().rank() == 0) summed_over_classes("soft_cross_entropy", logits);
  const Tensor parts = wide_of(probabilities) * log_softmax(wide_of(logits));
  return reduced_loss(neg(summed_over_classes("soft_cross_entropy", parts)), reduction);
}

Tensor smoothed_cross_entropy(const Tensor& logits, const Tensor& targets, float smoothing,
                              const CrossEntropyOptions& options) {
  if (!(smoothing >= 0 && smoothing < 1))
    throw UsageError(fmt::format("op smoothed_cross_entropy: a smoothing of {}", smoothing),
                     "give a share, at least 0 and below 1");
  const Tensor hard = cross_entropy(logits, targets, options);
  if (smoothing == 0 || targets.numel() == 0) return hard;
  const std::int64_t rows = targets.numel(), classes = logits.shape()[-1];
  Tensor by_class = log_softmax(wide_of(logits).reshape({rows, classes}));
  if (options.weights) by_class = by_class * options.weights.detach().reshape({classes});
  Tensor share;  // (rows, 1): of the mean
  {
    const NoGradGuard guard(logits.context());
    const Tensor ids = targets.detach().reshape({rows});
    share = options.weights ? sum(one_hot(ids, classes) * options.weights.detach().reshape({1, classes}), {1})
                            : full(logits.context(), {rows}, 1);
    if (options.ignored) share = where(eq(ids, static_cast<float>(*options.ignored)), 0.0f, share);
    const Tensor total = clamp(sum(share), 1e-30f, 3e38f);
    const Tensor is_counted =
        options.ignored ? ne(ids, static_cast<float>(*options.ignored)) : full(logits.context(), {rows}, 1);
    share = (is_counted / total).reshape({rows, 1});
  }
  const Tensor spread = sum(by_class * share) * (-1.0f / static_cast<float>(classes));
  return hard * (1 - smoothing) + spread * smoothing;
}

Tensor cosine_similarity(const Tensor& a, const Tensor& b, int dim) {
  require_pair("cosine_similarity", a, b);
  return sum(normalize(wide_of(a), dim, 1e-8f) * normalize(wide_of(b), dim, 1e-8f), {dim});
}

}  // namespace zs
