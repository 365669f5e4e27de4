#pragma once

#include <optional>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace zs {

// Reductions and what is made of them, with gradients, f32 or bf16. A dim may be negative: it counts from the end. Sums
// are carried in f64, in an order that follows from the shapes alone. Results have x's dtype unless said otherwise.

/// Sum over all elements, to a scalar; or over these dims, which go away, or keep size 1. A mean of no elements is 0.
Tensor sum(const Tensor& x);
Tensor sum(const Tensor& x, const std::vector<int>& dims, bool keeps_dims = false);
/// Sum divided by the number of elements.
Tensor mean(const Tensor& x);
Tensor mean(const Tensor& x, const std::vector<int>& dims, bool keeps_dims = false);
/// The largest elements, NaN where there is one; those that are equal share the gradient.
Tensor max(const Tensor& x);
Tensor max(const Tensor& x, const std::vector<int>& dims, bool keeps_dims = false);
/// i32, without gradient: where along the dim the largest element is; the first of equals.
Tensor argmax(const Tensor& x, int dim);

/// e^x / sum of e^x along the dim; computed in f32.
Tensor softmax(const Tensor& x, int dim = -1);
/// Logarithm of softmax.
Tensor log_softmax(const Tensor& x, int dim = -1);

/// Target that data gives to a position that counts for nothing, unless it says another: the value that other libraries
/// use.
inline constexpr std::int32_t kIgnoredTarget = -100;

/// Targets that count, and their weights.
struct CrossEntropyOptions {
  std::optional<std::int32_t> ignored = {};  ///< rows with this target count for nothing
  Tensor weights = {};  ///< f32 (classes), no gradient: rows count as much as their target's; empty: alike
};
/// Scalar f32: the mean over rows, by their weights, of -log softmax(row)[target]; 0 where no row counts. logits (...,
/// classes), targets i32, one for each row.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});
/// Scalar f32: the mean of (a - b)^2, computed in f32; a and b of one shape.
Tensor mse(const Tensor& a, const Tensor& b);

/// (..., m, k) x (..., k, n) -> (..., m, n), of one dtype, summed in f32; dims in front of the last two are broadcast.
/// b may be (k, n) alone.
Tensor matmul(const Tensor& a, const Tensor& b);

/// Key that a dropout's random numbers follow from. Element i of sample s, which is row s - first_sample of x's
/// outermost dim, has the same one on whichever rank it is, and when it is computed again.
struct RandomKey {
  std::uint64_t seed;
  std::int64_t step;          ///< any count of steps
  std::int64_t first_sample;  ///< index of the first sample among all samples of the step
  std::uint64_t place;        ///< number of this dropout in the model
};
/// Each element x / (1 - probability), or 0 with this probability.
Tensor dropout(const Tensor& x, float probability, const RandomKey& key);

}  // namespace zs
