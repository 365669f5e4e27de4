#pragma once

#include "runtime/tensor/tensor.h"

namespace zs {

// Convolutions of tensors, f32 or bf16 of one dtype, as products over what each window sees, which is kept for
// backward. Windows, strides, paddings (zeros on each side) and dilations (1: a window's elements are neighbours) are
// alike in both dims of an image.

/// Options of a convolution. groups: channels are cut into so many parts, each of which sees its own alone.
struct ConvolutionOptions {
  std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  std::int64_t output_padding = 0;  ///< lines after the result of a transposed one, below the stride
};

/// x (B, in, T), weight (out, in / groups, size), bias (out) or empty -> (B, out, T'), with
/// T' = (T + 2 padding - dilation (size - 1) - 1) / stride + 1.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvolutionOptions& options = {});
/// x (B, in, H, W), weight (out, in / groups, height, width) -> (B, out, H', W').
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvolutionOptions& options = {});
/// The mirror of conv1d: x (B, in, T), weight (in, out / groups, size) -> (B, out, T'), with
/// T' = (T - 1) stride - 2 padding + dilation (size - 1) + output_padding + 1.
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvolutionOptions& options = {});
/// The mirror of conv2d, weight (in, out / groups, height, width).
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvolutionOptions& options = {});

/// (B, C, H, W) -> (B, C, factor H, factor W): each element factor^2 times.
Tensor upsample_nearest(const Tensor& x, std::int64_t factor);
/// (B, C, H, W) -> (B, C, height, width), linearly between the middles of pixels (PyTorch's align_corners = False).
Tensor upsample_bilinear(const Tensor& x, std::int64_t height, std::int64_t width);

}  // namespace zs
