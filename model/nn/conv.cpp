#include "model/nn/conv.h"

#include <cmath>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/reduction.h"

namespace zs {
namespace {

Init init_of(const Conv2dOptions& options, std::int64_t in, std::int64_t size) {
  return options.init.value_or(Init{.normal_std = std::sqrt(2.0f / static_cast<float>(in * size * size))});
}

std::int64_t outputs(std::int64_t size, std::int64_t window, const Window& of) {
  return (size + 2 * of.padding - window) / of.stride + 1;
}

/// (B, C, elements of a window, H', W'): what each window sees.
Tensor seen_by_windows(const char* op, const Tensor& x, const Window& window) {
  if (!x || x.shape().rank() != 4)
    throw UsageError(fmt::format("op {} of {}", op, x ? x.describe() : "an empty tensor"),
                     "give (batch, channels, height, width)");
  if (window.padding != 0)
    throw UsageError(fmt::format("op {} with a padding of {}", op, window.padding),
                     "pad x by zs::pad() with the value that you want");
  const Shape& shape = x.shape();
  return unfold(x, window).reshape({shape[0], shape[1], window.height * window.width,
                                    outputs(shape[2], window.height, window), outputs(shape[3], window.width, window)});
}

}  // namespace

Conv2d::Conv2d(std::string path, std::int64_t in, std::int64_t out, std::int64_t size, const Conv2dOptions& options)
    : Layer(std::move(path)),
      window_{size, size, options.stride, options.padding},
      weight_(add_parameter("weight", {out, in, size, size}, init_of(options, in, size), true)),
      bias_(options.has_bias ? &add_parameter("bias", {out}, {}, false) : nullptr) {
  if (in < 1 || out < 1 || size < 1 || options.stride < 1 || options.padding < 0)
    throw UsageError(fmt::format("convolution \"{}\" of {} to {} channels, windows of {} x {}, stride {}, padding {}",
                                 this->path(), in, out, size, size, options.stride, options.padding),
                     "all are at least 1, and the padding at least 0");
}

Tensor Conv2d::forward(const Tensor& x) { return conv2d(input(x), weight_, bias_, window_); }

Tensor conv2d(const Tensor& x, Parameter& weight, Parameter* bias, const Window& window) {
  const std::int64_t out = weight.shape()[0], in = weight.shape()[1];
  if (!x || x.shape().rank() != 4 || x.shape()[1] != in)
    throw UsageError(fmt::format("op conv2d of {} with {} {}", x ? x.describe() : "an empty tensor", weight.name(),
                                 weight.shape().str()),
                     fmt::format("give (batch, {}, height, width)", in));
  Context& context = x.context();
  const Tensor rows = as_tensor(context, weight).reshape({out, weight.numel() / out});
  Tensor y = matmul(rows, unfold(x, window));  // (B, out, H' W')
  if (bias != nullptr) y = y + as_tensor(context, *bias).reshape({out, 1});
  return y.reshape(
      {x.shape()[0], out, outputs(x.shape()[2], window.height, window), outputs(x.shape()[3], window.width, window)});
}

Tensor max_pool2d(const Tensor& x, const Window& window) { return max(seen_by_windows("max_pool2d", x, window), {2}); }

Tensor mean_pool2d(const Tensor& x, const Window& window) {
  return mean(seen_by_windows("mean_pool2d", x, window), {2});
}

}  // namespace zs
