#pragma once

#include "runtime/tensor/tensor.h"

namespace zs {

/// Records that y is gelu(x).
void record_gelu(Tensor& y, const Tensor& x, GeluKind kind);

/// Tensor that GELU by tanh was taken of to give y, where products here have its gradient: an op that makes y's
/// gradient by a product may take this tensor for its input instead of y, and give its gradient. Both sum up to the
/// same where y has other uses, too. Else empty.
Tensor gelu_input_of(const Tensor& y);

}  // namespace zs
