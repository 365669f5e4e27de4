#pragma once

#include "runtime/tensor/tensor.h"

namespace zs {

// Elements in order along a dim, f32, bf16 or i32.

/// Elements and where along the dim they were, i32. Gradients flow back to where they came from.
struct Ordered {
  Tensor values, ids;
};
/// All elements, from the smallest on, or from the largest on. Equal ones stay in their order; NaN is the largest.
Ordered sort(const Tensor& x, int dim = -1, bool is_descending = false);
/// The `count` largest elements, from the largest on; or the smallest.
Ordered topk(const Tensor& x, std::int64_t count, int dim = -1, bool is_largest = true);
/// The ids of sort().
Tensor argsort(const Tensor& x, int dim = -1, bool is_descending = false);
/// Element i: the sum of elements 0 to i of its line; floats are summed in f64.
Tensor cumsum(const Tensor& x, int dim);

}  // namespace zs
