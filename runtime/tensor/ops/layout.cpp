#include "runtime/tensor/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

using Dims = std::vector<std::int64_t>;

Dims dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }
Shape shape_of(const Dims& dims) { return Shape(std::span<const std::int64_t>(dims)); }

void require_tensor(const char* op, const Tensor& x) {
  if (!x) throw UsageError(fmt::format("op {} of an empty tensor", op));
}

Tensor copied(const char* name, Context& context, const View& view, DType dtype) {
  return computed(name, context, view.shape, dtype, MapOp::copy, {view});
}

/// Destination of a gradient that is of a part of x alone: `held` where nobody else sees it, or a copy, or zeros.
struct Sum {
  Tensor dx;
  bool is_new;
};
Sum sum_with(const Tensor& held, Context& context, const Shape& shape, DType dtype) {
  if (held && held.is_sole_owner()) return {held, false};
  if (held) return {copied("copy_gradient", context, view_of(held), dtype), false};
  return {Tensor::zeros(context, shape, dtype), true};
}

/// Adds dy to the part that `part` is of.
void add_to_part(const Sum& sum, const View& part, const Tensor& dy) {
  if (sum.is_new) return map_into("part_backward", dy.context(), part, MapOp::copy, {dy});
  map_into("add_part_backward", dy.context(), part, MapOp::add, {part, dy});
}

Tensor permuted_copy(const Tensor& x, const std::vector<int>& order) {
  return copied("permute", x.context(), permuted(view_of(x), order), x.dtype());
}

}  // namespace

Tensor permute(const Tensor& x, const std::vector<int>& order) {
  require_tensor("permute", x);
  std::vector<int> from, back(order.size());
  for (const int dim : order) from.push_back(dim_of("permute", x.shape(), dim));
  std::vector<int> sorted = from;
  std::sort(sorted.begin(), sorted.end());
  if (std::cmp_not_equal(from.size(), x.shape().rank()) ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    throw UsageError(fmt::format("op permute: dims {} of {}", fmt::join(order, ", "), x.describe()),
                     "give each dim once");
  for (std::size_t d = 0; d < from.size(); ++d) back[static_cast<std::size_t>(from[d])] = static_cast<int>(d);
  Tensor y = permuted_copy(x, from);
  record_op(y, "permute", {x}, {}, [back](const Tensor& dy) { return std::vector<Tensor>{permuted_copy(dy, back)}; });
  return y;
}

Tensor transpose(const Tensor& x, int a, int b) {
  require_tensor("transpose", x);
  std::vector<int> order(static_cast<std::size_t>(x.shape().rank()));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[static_cast<std::size_t>(dim_of("transpose", x.shape(), a))],
            order[static_cast<std::size_t>(dim_of("transpose", x.shape(), b))]);
  return permute(x, order);
}

Tensor slice(const Tensor& x, int dim, std::int64_t first, std::int64_t count) {
  require_tensor("slice", x);
  const int d = dim_of("slice", x.shape(), dim);
  if (first < 0 || count < 0 || first > x.shape()[d] || count > x.shape()[d] - first)
    throw UsageError(fmt::format("op slice: {} lines from {} on of dim {} of {}", count, first, d, x.describe()),
                     "name lines that there are");
  if (d == 0) return x.rows(first, count);
  Tensor y = copied("slice", x.context(), narrow(view_of(x), d, first, count), x.dtype());
  record_adding_op(y, "slice", x, {}, [shape = x.shape(), d, first, count](const Tensor& dy, const Tensor& held) {
    const Sum sum = sum_with(held, dy.context(), shape, dy.dtype());
    if (count > 0) add_to_part(sum, narrow(view_of(sum.dx), d, first, count), dy);
    return sum.dx;
  });
  return y;
}

Tensor concat(const std::vector<Tensor>& tensors, int dim) {
  if (tensors.empty() || !tensors.front()) throw UsageError("op concat of no tensors");
  const Tensor& front = tensors.front();
  const int d = dim_of("concat", front.shape(), dim);
  std::vector<std::int64_t> sizes;
  for (const Tensor& x : tensors) {
    if (!x || x.dtype() != front.dtype() || x.shape().rank() != front.shape().rank() ||
        with_size(x.shape(), d, 0) != with_size(front.shape(), d, 0))
      throw UsageError(fmt::format("op concat along dim {}: {} beside {}", d, x ? x.describe() : "an empty tensor",
                                   front.describe()),
                       "they have one dtype, and one size in every other dim");
    sizes.push_back(x.shape()[d]);
  }
  Context& context = front.context();
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  Tensor y = Tensor::empty(context, with_size(front.shape(), d, total), front.dtype());
  std::int64_t first = 0;
  for (const Tensor& x : tensors) {
    if (x.numel() > 0) map_into("concat", context, narrow(view_of(y), d, first, x.shape()[d]), MapOp::copy, {x});
    first += x.shape()[d];
  }
  record_op(y, "concat", tensors, {}, [sizes, d](const Tensor& dy) {
    std::vector<Tensor> parts;
    std::int64_t from = 0;
    for (const std::int64_t size : sizes) {
      parts.push_back(copied("concat_backward", dy.context(), narrow(view_of(dy), d, from, size), dy.dtype()));
      from += size;
    }
    return parts;
  });
  return y;
}

Tensor stack(const std::vector<Tensor>& tensors, int dim) {
  if (tensors.empty() || !tensors.front()) throw UsageError("op stack of no tensors");
  const int rank = tensors.front().shape().rank(), d = dim < 0 ? dim + rank + 1 : dim;
  if (d < 0 || d > rank) throw UsageError(fmt::format("op stack: dim {} of {}", dim, tensors.front().describe()));
  std::vector<Tensor> lines;
  for (const Tensor& x : tensors) {
    require_alike("op stack", tensors.front(), x);
    Dims dims = dims_of(x.shape());
    dims.insert(dims.begin() + d, 1);
    lines.push_back(x.reshape(shape_of(dims)));
  }
  return concat(lines, d);
}

std::vector<Tensor> split(const Tensor& x, int dim, const std::vector<std::int64_t>& sizes) {
  require_tensor("split", x);
  const int d = dim_of("split", x.shape(), dim);
  if (std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != x.shape()[d])
    throw UsageError(fmt::format("op split: parts {} of dim {} of {}", fmt::join(sizes, ", "), d, x.describe()),
                     "their sizes add up to the dim's");
  std::vector<Tensor> parts;
  std::int64_t first = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(slice(x, d, first, size));
    first += size;
  }
  return parts;
}

Tensor pad(const Tensor& x, int dim, std::int64_t before, std::int64_t after, float value) {
  require_tensor("pad", x);
  const int d = dim_of("pad", x.shape(), dim);
  const std::int64_t size = x.shape()[d];
  if (before < 0 || after < 0)
    throw UsageError(fmt::format("op pad: {} lines before, {} after", before, after), "slice removes lines");
  Context& context = x.context();
  Tensor y = Tensor::empty(context, with_size(x.shape(), d, before + size + after), x.dtype());
  const View all = view_of(y);
  if (before > 0) map_into("padding", context, narrow(all, d, 0, before), MapOp::copy, {value});
  if (after > 0) map_into("padding", context, narrow(all, d, before + size, after), MapOp::copy, {value});
  if (x.numel() > 0) map_into("pad", context, narrow(all, d, before, size), MapOp::copy, {x});
  record_op(y, "pad", {x}, {}, [d, before, size](const Tensor& dy) {
    return std::vector<Tensor>{copied("pad_backward", dy.context(), narrow(view_of(dy), d, before, size), dy.dtype())};
  });
  return y;
}

Tensor expand(const Tensor& x, const Shape& shape) {
  require_tensor("expand", x);
  if (common_shape(x.shape(), shape) != shape)
    throw UsageError(fmt::format("op expand: {} to {}", x.describe(), shape.str()),
                     "dims of size 1, and missing ones in front, are repeated");
  Tensor y = copied("expand", x.context(), broadcast(view_of(x), shape), x.dtype());
  record_op(y, "expand", {x}, {},
            [from = x.shape()](const Tensor& dy) { return std::vector<Tensor>{sum_to(dy, from)}; });
  return y;
}

namespace {

struct Windows {
  Window window;
  std::int64_t rows, columns;  // numbers of windows
};

/// View of padded x (B, C, H, W): what each window has at (row, column) of its own, (B, C, rows, columns).
View seen_at(const View& x, const Windows& windows, std::int64_t row, std::int64_t column) {
  const Window& w = windows.window;
  View seen = narrow(narrow(x, 2, row, x.shape[2] - row), 3, column, x.shape[3] - column);
  seen.shape = {x.shape[0], x.shape[1], windows.rows, windows.columns};
  seen.strides[2] *= w.stride;
  seen.strides[3] *= w.stride;
  return seen;
}

Tensor unfold_gradient(const Tensor& dy, const Shape& padded, const Windows& windows) {
  Context& context = dy.context();
  const Window& w = windows.window;
  const Tensor dx = Tensor::zeros(context, padded, dy.dtype());
  const Tensor parts = dy.detach().reshape({padded[0], padded[1], w.height * w.width, windows.rows, windows.columns});
  for (std::int64_t i = 0; i < w.height * w.width; ++i) {
    const View part = seen_at(view_of(dx), windows, i / w.width, i % w.width);
    View from = narrow(view_of(parts), 2, i, 1);
    from = permuted(from, {0, 1, 3, 4});
    map_into("unfold_backward", context, part, MapOp::add, {part, from});
  }
  return dx;
}

}  // namespace

Tensor unfold(const Tensor& x, const Window& window) {
  if (!x || x.shape().rank() != 4)
    throw UsageError(fmt::format("op unfold of {}", x ? x.describe() : "an empty tensor"),
                     "give (batch, channels, height, width)");
  if (window.padding > 0) {
    Window rest = window;
    rest.padding = 0;
    return unfold(pad(pad(x, 2, window.padding, window.padding), 3, window.padding, window.padding), rest);
  }
  const Shape shape = x.shape();
  if (window.height < 1 || window.width < 1 || window.stride < 1 || window.padding < 0 || window.height > shape[2] ||
      window.width > shape[3])
    throw UsageError(fmt::format("op unfold: windows of {} x {}, stride {}, over {}", window.height, window.width,
                                 window.stride, x.describe()));
  const Windows windows{window, (shape[2] - window.height) / window.stride + 1,
                        (shape[3] - window.width) / window.stride + 1};
  View seen = seen_at(view_of(x), windows, 0, 0);
  const auto strides = view_of(x).strides;
  seen.shape = {shape[0], shape[1], window.height, window.width, windows.rows, windows.columns};
  seen.strides = {
      strides[0], strides[1], strides[2], strides[3], strides[2] * window.stride, strides[3] * window.stride};
  Tensor y = copied("unfold", x.context(), seen, x.dtype());
  y = y.reshape({shape[0], shape[1] * window.height * window.width, windows.rows * windows.columns});
  record_op(y, "unfold", {x}, {},
            [shape, windows](const Tensor& dy) { return std::vector<Tensor>{unfold_gradient(dy, shape, windows)}; });
  return y;
}

namespace {

Tensor lines_gradient(const Tensor& dy, const Tensor& ids, const Shape& shape, const LineDims& dims) {
  Context& context = dy.context();
  const Tensor sums = Tensor::empty(context, shape, DType::f32);
  const Buffer out = sums.buffer(), in = dy.buffer(), at = ids.buffer();
  context.launch({"lines_backward", {in, at}, {out}},
                 [&kernels = context.kernels(), out, in, at, dims](ExecContext& exec) {
                   kernels.add_lines(exec, out, in, at, dims);
                 });
  return dy.dtype() == DType::f32 ? sums : copied("cast_gradient", context, view_of(sums), dy.dtype());
}

Tensor taken(const char* op, const Tensor& x, const Tensor& ids, const Shape& shape, const LineDims& dims) {
  Context& context = x.context();
  Tensor y = Tensor::empty(context, shape, x.dtype());
  const Buffer out = y.buffer(), in = x.buffer(), at = ids.buffer();
  if (y.numel() > 0)
    context.launch({op, {in, at}, {out}}, [&kernels = context.kernels(), out, in, at, dims](ExecContext& exec) {
      kernels.take_lines(exec, out, in, at, dims);
    });
  record_op(y, op, {x}, {}, [ids = ids.detach(), from = x.shape(), dims](const Tensor& dy) {
    return std::vector<Tensor>{lines_gradient(dy, ids, from, dims)};
  });
  return y;
}

}  // namespace

Tensor index_select(const Tensor& x, int dim, const Tensor& ids) {
  require_tensor("index_select", x);
  require_ids("index_select", "ids", ids);
  const int d = dim_of("index_select", x.shape(), dim);
  if (ids.shape().rank() != 1)
    throw UsageError(fmt::format("op index_select: ids {}", ids.describe()), "give ids of one dim, or gather");
  return taken("index_select", x, ids, with_size(x.shape(), d, ids.numel()),
               line_dims(x.shape(), d, ids.numel(), false));
}

Tensor gather(const Tensor& x, int dim, const Tensor& ids) {
  require_tensor("gather", x);
  require_ids("gather", "ids", ids);
  const int d = dim_of("gather", x.shape(), dim);
  if (ids.shape().rank() != x.shape().rank() || with_size(ids.shape(), d, 0) != with_size(x.shape(), d, 0))
    throw UsageError(fmt::format("op gather along dim {}: ids {} of {}", d, ids.describe(), x.describe()),
                     "every other dim has one size in both");
  return taken("gather", x, ids, ids.shape(), line_dims(x.shape(), d, ids.shape()[d], true));
}

}  // namespace zs
