#include "model/nn/conv.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/convolution.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/reduction.h"

namespace zs {
namespace {

/// Initial values of weights of elements that are each made of so many.
Init init_of(const std::optional<Init>& init, std::int64_t inputs) {
  return init.value_or(Init{.normal_std = std::sqrt(2.0f / static_cast<float>(std::max<std::int64_t>(inputs, 1)))});
}

/// Refuses numbers that make no convolution, before a shape is made of them.
template <class Options>
const Options& checked(const std::string& path, std::int64_t in, std::int64_t out, std::int64_t size,
                       const Options& options) {
  const std::int64_t groups = options.groups;
  if (in < 1 || out < 1 || size < 1 || options.stride < 1 || options.padding < 0 || options.dilation < 1)
    throw UsageError(fmt::format("convolution \"{}\" of {} to {} channels, windows of {}, stride {}, padding {}, "
                                 "dilation {}",
                                 path, in, out, size, options.stride, options.padding, options.dilation),
                     "all are at least 1, and the padding at least 0");
  if (groups < 1 || in % groups != 0 || out % groups != 0)
    throw UsageError(fmt::format("convolution \"{}\" of {} to {} channels in {} groups", path, in, out, groups),
                     "groups divide both numbers of channels");
  return options;
}

template <class Options>
ConvolutionOptions convolution_of(const Options& options) {
  ConvolutionOptions result{options.stride, options.padding, options.dilation, options.groups, 0};
  if constexpr (requires { options.output_padding; }) result.output_padding = options.output_padding;
  return result;
}

Tensor bias_of(Context& context, Parameter* bias) { return bias != nullptr ? as_tensor(context, *bias) : Tensor{}; }

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
      options_(checked(this->path(), in, out, size, options)),
      weight_(add_parameter("weight", {out, in / options.groups, size, size},
                            init_of(options.init, in / options.groups * size * size), true)),
      bias_(options.has_bias ? &add_parameter("bias", {out}, {}, false) : nullptr) {}

Tensor Conv2d::forward(const Tensor& x) {
  if (options_.dilation == 1 && options_.groups == 1) return conv2d(input(x), weight_, bias_, window_);
  Context& context = x.context();
  return conv2d(input(x), as_tensor(context, weight_), bias_of(context, bias_), convolution_of(options_));
}

Conv1d::Conv1d(std::string path, std::int64_t in, std::int64_t out, std::int64_t size, const Conv1dOptions& options)
    : Layer(std::move(path)),
      options_(checked(this->path(), in, out, size, options)),
      weight_(add_parameter("weight", {out, in / options.groups, size},
                            init_of(options.init, in / options.groups * size), true)),
      bias_(options.has_bias ? &add_parameter("bias", {out}, {}, false) : nullptr) {}

Tensor Conv1d::forward(const Tensor& x) {
  Context& context = x.context();
  return conv1d(input(x), as_tensor(context, weight_), bias_of(context, bias_), convolution_of(options_));
}

namespace {

Shape transposed_weight(int dims, std::int64_t in, std::int64_t out, std::int64_t size) {
  return dims == 1 ? Shape{in, out, size} : Shape{in, out, size, size};
}

}  // namespace

template <int kDims>
ConvTranspose<kDims>::ConvTranspose(std::string path, std::int64_t in, std::int64_t out, std::int64_t size,
                                    const ConvTransposeOptions& options)
    : Layer<ConvTranspose<kDims>>(std::move(path)),
      options_(checked(this->path(), in, out, size, options)),
      weight_(this->add_parameter("weight", transposed_weight(kDims, in, out / options.groups, size),
                                  init_of(options.init, in / options.groups * size * (kDims == 2 ? size : 1) /
                                                            (options.stride * (kDims == 2 ? options.stride : 1))),
                                  true)),
      bias_(options.has_bias ? &this->add_parameter("bias", {out}, {}, false) : nullptr) {}

template <int kDims>
Tensor ConvTranspose<kDims>::forward(const Tensor& x) {
  Context& context = x.context();
  constexpr auto kOp = kDims == 1 ? conv_transpose1d : conv_transpose2d;
  return kOp(this->input(x), as_tensor(context, weight_), bias_of(context, bias_), convolution_of(options_));
}

template class ConvTranspose<1>;
template class ConvTranspose<2>;

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
