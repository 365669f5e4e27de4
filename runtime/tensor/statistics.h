#pragma once

#include "runtime/tensor/reduction.h"

namespace zs {

// Reductions that are made of those of reduction.h, computed in f32; dims, dtypes and gradients are theirs. Without
// dims: of all elements.

/// The smallest elements, as max.
Tensor min(const Tensor& x);
Tensor min(const Tensor& x, const std::vector<int>& dims, bool keeps_dims = false);
/// i32, as argmax.
Tensor argmin(const Tensor& x, int dim);
/// The mean of the squared distances from the mean, times n / (n - correction) for n elements.
Tensor variance(const Tensor& x);
Tensor variance(const Tensor& x, const std::vector<int>& dims, bool keeps_dims = false, int correction = 1);
/// Square root of the variance; its gradient where all elements are alike is 0.
Tensor deviation(const Tensor& x);
Tensor deviation(const Tensor& x, const std::vector<int>& dims, bool keeps_dims = false, int correction = 1);
/// Square root of the sum of squares; its gradient at 0 is 0.
Tensor norm(const Tensor& x);
Tensor norm(const Tensor& x, const std::vector<int>& dims, bool keeps_dims = false);
/// x / norm of its line of a dim, or x / least where that is smaller.
Tensor normalize(const Tensor& x, int dim = -1, float least = 1e-12f);
/// log(sum(e^x)), finite for finite x.
Tensor logsumexp(const Tensor& x, const std::vector<int>& dims, bool keeps_dims = false);

}  // namespace zs
