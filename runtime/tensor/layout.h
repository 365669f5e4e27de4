#pragma once

#include <span>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace zs {

// Ops that move elements, with gradients: f32, bf16 or i32. Tensors are dense: what is not a row of the outermost dim
// is copied (docs/ decisions/0046-general-ops.md). A dim may be negative: it counts from the end.

/// Two dims in each other's place.
Tensor transpose(const Tensor& x, int a, int b);
/// Dim order[d] of x becomes dim d.
Tensor permute(const Tensor& x, const std::vector<int>& order);
/// Lines [first, first + count) of a dim.
Tensor slice(const Tensor& x, int dim, std::int64_t first, std::int64_t count);
/// The lines of all, in their order; other dims are alike.
Tensor concat(const std::vector<Tensor>& tensors, int dim);
/// Tensors of one shape along a new dim.
Tensor stack(const std::vector<Tensor>& tensors, int dim);
/// Parts of these sizes, which add up to the dim's.
std::vector<Tensor> split(const Tensor& x, int dim, const std::vector<std::int64_t>& sizes);
/// Pads x with so many lines of `value` before and after its own.
Tensor pad(const Tensor& x, int dim, std::int64_t before, std::int64_t after, float value = 0);
/// x repeated along dims of size 1, or missing ones, up to this shape.
Tensor expand(const Tensor& x, const Shape& shape);

/// A window that moves over the last two dims of an image.
struct Window {
  std::int64_t height, width;
  std::int64_t stride = 1, padding = 0;  ///< for both dims; padding: zeros on each side
};
/// (B, C, H, W) -> (B, C height width, outputs): column o has what window o, of (H + 2 padding - height) / stride + 1
/// rows of them, sees, so that a convolution is a product: matmul(weight (out, C height width), unfold(x, window)).
Tensor unfold(const Tensor& x, const Window& window);

/// Lines ids (n), i32, of a dim; a line may be asked for several times.
Tensor index_select(const Tensor& x, int dim, const Tensor& ids);
/// Elements picked along a dim: the result has the shape of ids, which is x's but for this dim, and each element is
/// element ids[...] of x's line; ids i32.
Tensor gather(const Tensor& x, int dim, const Tensor& ids);

}  // namespace zs
