#pragma once

#include <optional>

#include "model/nn/module.h"
#include "runtime/tensor/layout.h"

namespace zs {

/// Options of Conv2d and Conv1d.
struct Conv2dOptions {
  std::int64_t stride = 1, padding = 0;  ///< for both dims; padding: zeros on each side
  bool has_bias = true;
  /// Initial values of the weight; none: normal, of deviation sqrt(2 / (inputs of an element)) (He et al. 2015)
  std::optional<Init> init = {};
  std::int64_t dilation = 1, groups = 1;  ///< see ConvolutionOptions
};
/// Options of Conv1d, as Conv2d has them.
using Conv1dOptions = Conv2dOptions;

/// Options of ConvTranspose2d and ConvTranspose1d.
struct ConvTransposeOptions {
  std::int64_t stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;  ///< see ConvolutionOptions
  bool has_bias = true;
  std::optional<Init> init =
      {};  ///< none: normal, of deviation sqrt(2 stride^dims / (in / groups x elements of a window))
};

/// A convolution with square windows: "weight" (out, in / groups, size, size), and "bias" (out), which begins at zero
/// and does not decay. A product over what unfold() gives, whose columns it keeps for backward.
class Conv2d : public Layer<Conv2d> {
 public:
  Conv2d(std::string path, std::int64_t in, std::int64_t out, std::int64_t size, const Conv2dOptions& options = {});

  /// (B, in, H, W) -> (B, out, H', W'), with H' = (H + 2 padding - dilation (size - 1) - 1) / stride + 1.
  Tensor forward(const Tensor& x);

 private:
  Window window_;
  Conv2dOptions options_;
  Parameter& weight_;
  Parameter* bias_;  // null: none
};

/// A convolution over time: "weight" (out, in / groups, size), otherwise as Conv2d.
class Conv1d : public Layer<Conv1d> {
 public:
  Conv1d(std::string path, std::int64_t in, std::int64_t out, std::int64_t size, const Conv1dOptions& options = {});

  /// (B, in, T) -> (B, out, T')
  Tensor forward(const Tensor& x);

 private:
  Conv1dOptions options_;
  Parameter& weight_;
  Parameter* bias_;  // null: none
};

/// A transposed convolution of images (kDims 2) or over time (1): "weight" (in, out / groups, size ...), and "bias"
/// (out), which begins at zero and does not decay. conv_transpose2d() says the sizes.
template <int kDims>
class ConvTranspose : public Layer<ConvTranspose<kDims>> {
 public:
  ConvTranspose(std::string path, std::int64_t in, std::int64_t out, std::int64_t size,
                const ConvTransposeOptions& options = {});

  /// (B, in, H, W) -> (B, out, H', W'), or (B, in, T) -> (B, out, T')
  Tensor forward(const Tensor& x);

 private:
  ConvTransposeOptions options_;
  Parameter& weight_;
  Parameter* bias_;  // null: none
};
extern template class ConvTranspose<1>;
extern template class ConvTranspose<2>;
/// Transposed convolution over time.
using ConvTranspose1d = ConvTranspose<1>;
/// Transposed convolution over an image.
using ConvTranspose2d = ConvTranspose<2>;

/// x (B, in, H, W), weight (out, in, height, width) as the window says, bias (out) or null -> (B, out, H', W').
Tensor conv2d(const Tensor& x, Parameter& weight, Parameter* bias, const Window& window);

/// (B, C, H, W) -> (B, C, H', W'): the largest of each window's elements; a window has no padding.
Tensor max_pool2d(const Tensor& x, const Window& window);
/// Mean of each window's elements, otherwise as max_pool2d.
Tensor mean_pool2d(const Tensor& x, const Window& window);

}  // namespace zs
