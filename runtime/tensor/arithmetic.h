#pragma once

#include "runtime/tensor/tensor.h"

namespace zs {

// Elementwise ops with gradients, f32 or bf16. Two tensors have one dtype (else cast one of them), and are broadcast:
// dims are compared from the last on, and one of size 1, or a missing one, is repeated. Elements are computed in f32
// and rounded to the dtype once. A number may stand for a tensor.

/// Sum; of two tensors of one shape by a kernel of its own.
Tensor add(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, float b);
/// a - b
Tensor sub(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, float b);
Tensor sub(float a, const Tensor& b);
/// a b
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, float b);
/// a / b
Tensor div(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, float b);
Tensor div(float a, const Tensor& b);
/// a^b, NaN for a negative a and a b that is no integer. Gradients: 0 by a where b is 0, 0 by b where a is 0.
Tensor pow(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, float b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, float b) { return add(a, b); }
inline Tensor operator+(float a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, float b) { return sub(a, b); }
inline Tensor operator-(float a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, float b) { return mul(a, b); }
inline Tensor operator*(float a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, float b) { return div(a, b); }
inline Tensor operator/(float a, const Tensor& b) { return div(a, b); }

/// -x
Tensor neg(const Tensor& x);
inline Tensor operator-(const Tensor& x) { return neg(x); }
/// e^x
Tensor exp(const Tensor& x);
/// The natural logarithm; -infinity of 0, NaN of what is below.
Tensor log(const Tensor& x);
/// The square root; NaN of what is below 0.
Tensor sqrt(const Tensor& x);
/// 1 / sqrt(x)
Tensor rsqrt(const Tensor& x);
/// The hyperbolic tangent.
Tensor tanh(const Tensor& x);
/// The sine of radians.
Tensor sin(const Tensor& x);
/// The cosine of radians.
Tensor cos(const Tensor& x);
/// 1 / (1 + e^-x)
Tensor sigmoid(const Tensor& x);
/// x where it is above 0, else 0; the gradient at 0 is 0.
Tensor relu(const Tensor& x);
/// x sigmoid(x)
Tensor silu(const Tensor& x);
/// Absolute values; the gradient at 0 is 0.
Tensor abs(const Tensor& x);
/// x between low and high; the gradient is 0 outside.
Tensor clamp(const Tensor& x, float low, float high);

/// Masks, without gradients: 1 where it is so, else 0; of a's dtype, or f32 for i32. a and b: f32, bf16 or i32 (exact
/// up to 2^24).
Tensor eq(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, float b);
/// a < b
Tensor lt(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, float b);
/// a > b
Tensor gt(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, float b);
/// a where the mask, f32, bf16 or i32, is not 0, else b; the mask has no gradient.
Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& mask, const Tensor& a, float b);
Tensor where(const Tensor& mask, float a, const Tensor& b);

}  // namespace zs
