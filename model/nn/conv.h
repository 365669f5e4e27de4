#pragma once

#include <optional>

#include "model/nn/module.h"
#include "runtime/tensor/layout.h"

namespace zs {

/// Options of Conv2d.
struct Conv2dOptions {
  std::int64_t stride = 1, padding = 0;  ///< for both dims; padding: zeros on each side
  bool has_bias = true;
  /// Initial values of the weight; none: normal, of deviation sqrt(2 / (in x size^2)) (He et al. 2015)
  std::optional<Init> init = {};
};

/// A convolution with square windows: "weight" (out, in, size, size), and "bias" (out), which begins at zero and does
/// not decay. A product over what unfold() gives, whose columns it keeps for backward.
class Conv2d : public Layer<Conv2d> {
 public:
  Conv2d(std::string path, std::int64_t in, std::int64_t out, std::int64_t size, const Conv2dOptions& options = {});

  /// (B, in, H, W) -> (B, out, H', W'), with H' = (H + 2 padding - size) / stride + 1.
  Tensor forward(const Tensor& x);

 private:
  Window window_;
  Parameter& weight_;
  Parameter* bias_;  // null: none
};

/// x (B, in, H, W), weight (out, in, height, width) as the window says, bias (out) or null -> (B, out, H', W').
Tensor conv2d(const Tensor& x, Parameter& weight, Parameter* bias, const Window& window);

/// (B, C, H, W) -> (B, C, H', W'): the largest of each window's elements; a window has no padding.
Tensor max_pool2d(const Tensor& x, const Window& window);
/// Mean of each window's elements, otherwise as max_pool2d.
Tensor mean_pool2d(const Tensor& x, const Window& window);

}  // namespace zs
