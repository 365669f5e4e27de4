#pragma once

#include "runtime/tensor/reduction.h"

namespace zs {

// Losses beside cross_entropy and mse (reduction.h), computed in f32 and f32 themselves, with gradients by predictions
// and, where they are floats and want one, by targets.

/// Reduction of the losses of single elements or rows.
enum class LossReduction : std::uint8_t { mean, sum, none };

/// |a - b|; a and b of one shape.
Tensor l1_loss(const Tensor& a, const Tensor& b, LossReduction reduction = LossReduction::mean);
/// (a - b)^2 / (2 beta) where |a - b| < beta, else |a - b| - beta / 2 (Girshick 2015). Huber's loss is beta times it.
Tensor smooth_l1_loss(const Tensor& a, const Tensor& b, float beta = 1, LossReduction reduction = LossReduction::mean);
/// Loss of logits x and probabilities t of one shape: -w t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)), w
/// positive_weight.
Tensor bce_with_logits(const Tensor& logits, const Tensor& targets, float positive_weight = 1,
                       LossReduction reduction = LossReduction::mean);
/// p (log p - log q) of each class, summed over the last dim, of log q `log_probabilities` and p `targets`; 0 where p
/// is 0. The mean is over rows (PyTorch's "batchmean").
Tensor kl_div(const Tensor& log_probabilities, const Tensor& targets, LossReduction reduction = LossReduction::mean);
/// -sum of p log softmax(row) over the last dim, of probabilities p of logits' shape. The mean is over rows.
Tensor soft_cross_entropy(const Tensor& logits, const Tensor& probabilities,
                          LossReduction reduction = LossReduction::mean);
/// cross_entropy() of targets of which a share of `smoothing` is spread over all classes alike (Szegedy et al. 2016),
/// as PyTorch weighs it where there are weights. (rows, classes) are kept for backward.
Tensor smoothed_cross_entropy(const Tensor& logits, const Tensor& targets, float smoothing,
                              const CrossEntropyOptions& options = {});
/// a b / (|a| |b|) of each line of the dim; norms below 1e-8 count as that.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, int dim = -1);

}  // namespace zs
