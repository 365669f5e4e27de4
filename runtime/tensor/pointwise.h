#pragma once

#include "runtime/tensor/arithmetic.h"

namespace zs {

// Functions of single elements that are made of those of arithmetic.h: dtypes, broadcasting and gradients are theirs.

/// Masks: 1 where a >= b, else 0; NaN is neither.
Tensor ge(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, float b);
/// a <= b
Tensor le(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, float b);
/// a != b; NaN is not itself.
Tensor ne(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, float b);
/// 1 where the mask is 0, else 0.
Tensor logical_not(const Tensor& mask);

/// The larger one, or NaN where one is; the gradient is its alone, and b's where both are equal.
Tensor maximum(const Tensor& a, const Tensor& b);
/// The smaller one, likewise.
Tensor minimum(const Tensor& a, const Tensor& b);

/// x^2
Tensor square(const Tensor& x);
/// x where it is above 0, else slope x.
Tensor leaky_relu(const Tensor& x, float slope = 0.01f);
/// x where it is above 0, else alpha (e^x - 1) (Clevert et al. 2016).
Tensor elu(const Tensor& x, float alpha = 1);
/// log(1 + e^x), which is finite for every finite x.
Tensor softplus(const Tensor& x);
/// log(sigmoid(x)), likewise.
Tensor log_sigmoid(const Tensor& x);

}  // namespace zs
