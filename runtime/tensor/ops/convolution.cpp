#include "runtime/tensor/convolution.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/reduction.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

/// A window that moves over the last two dims of (B, C, H, W), and how often it stands in each.
struct Sliding {
  std::array<std::int64_t, 2> size, stride, dilation, places;

  std::int64_t elems() const { return size[0] * size[1]; }
  /// Length of the dim that the window with its places covers.
  std::int64_t covered(std::size_t dim) const {
    return (places[dim] - 1) * stride[dim] + dilation[dim] * (size[dim] - 1) + 1;
  }
};

/// View of x (B, C, H, W) as all windows see it, (B, C, height, width, rows, columns).
View seen(const View& x, const Sliding& w) {
  View view = x;
  view.shape = {x.shape[0], x.shape[1], w.size[0], w.size[1], w.places[0], w.places[1]};
  view.strides = {x.strides[0],
                  x.strides[1],
                  x.strides[2] * w.dilation[0],
                  x.strides[3] * w.dilation[1],
                  x.strides[2] * w.stride[0],
                  x.strides[3] * w.stride[1]};
  return view;
}

/// Columns of what each window sees: (B, C height width, rows columns).
Tensor columns_of(const Tensor& x, const Sliding& w) {
  const Shape& shape = x.shape();
  const View all = seen(view_of(x), w);
  return computed("conv_columns", x.context(), all.shape, x.dtype(), MapOp::copy, {all})
      .reshape({shape[0], shape[1] * w.elems(), w.places[0] * w.places[1]});
}

/// The mirror: each window's columns added to where it sees them in zeros of this shape.
Tensor image_of(const Tensor& columns, const Shape& shape, const Sliding& w) {
  Context& context = columns.context();
  const Tensor sums = Tensor::zeros(context, shape, DType::f32),
               parts = columns.detach().reshape({shape[0], shape[1], w.elems(), w.places[0], w.places[1]});
  for (std::int64_t i = 0; i < w.elems(); ++i) {
    View place = narrow(narrow(seen(view_of(sums), w), 2, i / w.size[1], 1), 3, i % w.size[1], 1);
    place = permuted(place, {0, 1, 4, 5});
    const View part = permuted(narrow(view_of(parts), 2, i, 1), {0, 1, 3, 4});
    map_into("conv_image", context, place, MapOp::add, {place, part});
  }
  const NoGradGuard guard(context);
  return cast(sums, columns.dtype());
}

Tensor windows(const Tensor& x, const Sliding& w) {
  Tensor y = columns_of(x.detach(), w);
  record_op(y, "windows", {x}, {},
            [shape = x.shape(), w](const Tensor& dy) { return std::vector<Tensor>{image_of(dy, shape, w)}; });
  return y;
}

Tensor joined(const Tensor& columns, const Shape& shape, const Sliding& w) {
  Tensor y = image_of(columns, shape, w);
  record_op(y, "windows_joined", {columns}, {},
            [w](const Tensor& dy) { return std::vector<Tensor>{columns_of(dy.detach(), w)}; });
  return y;
}

/// Sizes of a convolution of (B, C, H, W); of one dim, height 1.
struct Problem {
  const char* op;
  bool is_flat;  // True if it has one dim
  ConvolutionOptions options;

  std::array<std::int64_t, 2> both(std::int64_t value, std::int64_t flat) const {
    return {is_flat ? flat : value, value};
  }
};

[[noreturn]] void refuse(const Problem& problem, const Tensor& x, const Tensor& weight, const char* remedy) {
  const ConvolutionOptions& o = problem.options;
  throw UsageError(fmt::format("op {} of {} with a weight {}, stride {}, padding {}, dilation {}, {} groups",
                               problem.op, x ? x.describe() : "an empty tensor",
                               weight ? weight.describe() : "that is empty", o.stride, o.padding, o.dilation, o.groups),
                   remedy);
}

void check(const Problem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias, bool is_transposed) {
  const ConvolutionOptions& o = problem.options;
  const int rank = problem.is_flat ? 3 : 4;
  require_float(problem.op, "x", x);
  require_float(problem.op, "weight", weight);
  if (x.shape().rank() != rank || weight.shape().rank() != rank || x.dtype() != weight.dtype())
    refuse(problem, x, weight,
           problem.is_flat ? "give (batch, channels, time), and a weight of three dims and x's dtype"
                           : "give (batch, channels, height, width), and a weight of four dims and x's dtype");
  const std::int64_t first = weight.shape()[0], second = weight.shape()[1];
  const bool fits =
      o.groups >= 1 && first % o.groups == 0 && x.shape()[1] == (is_transposed ? first : second * o.groups);
  if (!fits || o.stride < 1 || o.padding < 0 || o.dilation < 1 || o.output_padding < 0 ||
      o.output_padding >= std::max(o.stride, o.dilation) || (!is_transposed && o.output_padding != 0))
    refuse(problem, x, weight,
           is_transposed ? "the weight is (in, out / groups, ...)" : "the weight is (out, in / groups, ...)");
  const std::int64_t out = is_transposed ? second * o.groups : first;
  if (bias && (bias.shape() != Shape{out} || bias.dtype() != x.dtype()))
    throw UsageError(
        fmt::format("op {}: a bias {} for {} channels of {}", problem.op, bias.describe(), out, name_of(x.dtype())));
}

Tensor as_image(const Tensor& x, bool is_flat) {
  return is_flat ? x.reshape({x.shape()[0], x.shape()[1], 1, x.shape()[2]}) : x;
}

Tensor with_bias(const Tensor& y, const Tensor& bias) { return bias ? y + bias.reshape({bias.numel(), 1, 1}) : y; }

Tensor convolved(const Problem& problem, const Tensor& given, const Tensor& given_weight, const Tensor& bias) {
  check(problem, given, given_weight, bias, false);
  const ConvolutionOptions& o = problem.options;
  Tensor x = as_image(given, problem.is_flat);
  const Tensor weight = as_image(given_weight, problem.is_flat);
  if (o.padding > 0) {
    x = pad(x, 3, o.padding, o.padding);
    if (!problem.is_flat) x = pad(x, 2, o.padding, o.padding);
  }
  const Shape &shape = x.shape(), &of = weight.shape();
  Sliding w{{of[2], of[3]}, problem.both(o.stride, 1), problem.both(o.dilation, 1), {}};
  for (const std::size_t d : {0u, 1u}) {
    const std::int64_t rest = shape[static_cast<int>(d) + 2] - w.dilation[d] * (w.size[d] - 1) - 1;
    if (rest < 0 || w.size[d] < 1) refuse(problem, given, given_weight, "a window has to fit into the padded input");
    w.places[d] = rest / w.stride[d] + 1;
  }
  const std::int64_t batch = shape[0], out = of[0], inner = of[1] * w.elems(), places = w.places[0] * w.places[1];
  const Tensor columns = windows(x, w).reshape({batch, o.groups, inner, places});
  const Tensor y = matmul(weight.reshape({o.groups, out / o.groups, inner}), columns)
                       .reshape({batch, out, w.places[0], w.places[1]});
  const Tensor sum = with_bias(y, bias);
  return problem.is_flat ? sum.reshape({batch, out, w.places[1]}) : sum;
}

Tensor convolved_back(const Problem& problem, const Tensor& given, const Tensor& given_weight, const Tensor& bias) {
  check(problem, given, given_weight, bias, true);
  const ConvolutionOptions& o = problem.options;
  const Tensor x = as_image(given, problem.is_flat), weight = as_image(given_weight, problem.is_flat);
  const Shape &shape = x.shape(), &of = weight.shape();
  const Sliding w{{of[2], of[3]}, problem.both(o.stride, 1), problem.both(o.dilation, 1), {shape[2], shape[3]}};
  const std::array<std::int64_t, 2> padding = problem.both(o.padding, 0), behind = problem.both(o.output_padding, 0);
  const std::int64_t batch = shape[0], in = shape[1], out = of[1] * o.groups, places = shape[2] * shape[3];
  const Tensor by_group = transpose(weight.reshape({o.groups, in / o.groups, of[1] * w.elems()}), 1, 2);
  const Tensor columns = matmul(by_group, x.reshape({batch, o.groups, in / o.groups, places}));
  // Lines behind what windows reach belong to the padding first
  const Shape whole{batch, out, w.covered(0) + behind[0], w.covered(1) + behind[1]};
  Tensor y = joined(columns.reshape({batch, out * w.elems(), places}), whole, w);
  for (const std::size_t d : {0u, 1u}) {
    const int dim = static_cast<int>(d) + 2;
    const std::int64_t rest = whole[dim] - 2 * padding[d];
    if (rest < 1 || w.size[d] < 1) refuse(problem, given, given_weight, "the padding takes away all of the result");
    if (padding[d] > 0) y = slice(y, dim, padding[d], rest);
  }
  const Tensor sum = with_bias(y, bias);
  return problem.is_flat ? sum.reshape({batch, out, sum.shape()[3]}) : sum;
}

void require_image(const char* op, const Tensor& x, bool is_fit) {
  require_float(op, "x", x);
  if (x.shape().rank() != 4 || !is_fit)
    throw UsageError(fmt::format("op {} of {}", op, x.describe()),
                     "give (batch, channels, height, width), and sizes of at least 1");
}

/// (to, from) matrix of linear interpolation.
Tensor interpolation(Context& context, std::int64_t from, std::int64_t to, DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(from * to), 0.0f);
  for (std::int64_t i = 0; i < to; ++i) {
    const double at =
        std::max(0.0, (static_cast<double>(i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5);
    const auto low = std::min(static_cast<std::int64_t>(at), from - 1), high = std::min(low + 1, from - 1);
    const double share = at - static_cast<double>(low);
    values[static_cast<std::size_t>(i * from + low)] += static_cast<float>(1 - share);
    values[static_cast<std::size_t>(i * from + high)] += static_cast<float>(share);
  }
  return Tensor::from_host(context, {to, from}, std::move(values), dtype);
}

}  // namespace

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options) {
  return convolved({"conv1d", true, options}, x, weight, bias);
}
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options) {
  return convolved({"conv2d", false, options}, x, weight, bias);
}
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options) {
  return convolved_back({"conv_transpose1d", true, options}, x, weight, bias);
}
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options) {
  return convolved_back({"conv_transpose2d", false, options}, x, weight, bias);
}

Tensor upsample_nearest(const Tensor& x, std::int64_t factor) {
  require_image("upsample_nearest", x, factor >= 1);
  const Shape& s = x.shape();
  return expand(x.reshape({s[0], s[1], s[2], 1, s[3], 1}), {s[0], s[1], s[2], factor, s[3], factor})
      .reshape({s[0], s[1], s[2] * factor, s[3] * factor});
}

Tensor upsample_bilinear(const Tensor& x, std::int64_t height, std::int64_t width) {
  require_image("upsample_bilinear", x, height >= 1 && width >= 1);
  if (x.numel() == 0 && x.shape()[2] * x.shape()[3] == 0) require_image("upsample_bilinear", x, false);
  const Tensor rows = interpolation(x.context(), x.shape()[2], height, x.dtype());
  const Tensor columns = interpolation(x.context(), x.shape()[3], width, x.dtype());
  return matmul(matmul(rows, x), transpose(columns, 0, 1));
}

}  // namespace zs
