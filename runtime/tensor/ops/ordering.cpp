#include "runtime/tensor/ordering.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/host_op.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

void require_number(const char* op, const Tensor& x) {
  if (!x || x.dtype() != DType::i32) require_float(op, "x", x);
}

/// Lines of a dim: element i of line n is at first(n) + i * inner.
struct Lines {
  std::int64_t outer, count, inner;

  std::int64_t lines() const { return outer * inner; }
  std::int64_t first(std::int64_t line) const { return line / inner * inner * count + line % inner; }
};

Lines lines_of(const Shape& shape, int dim) {
  Lines lines{1, shape[dim], 1};
  for (int d = 0; d < dim; ++d) lines.outer *= shape[d];
  for (int d = dim + 1; d < shape.rank(); ++d) lines.inner *= shape[d];
  return lines;
}

double number(const Buffer& buffer, std::int64_t i) {
  if (buffer.dtype == DType::i32) return buffer.as<std::int32_t>()[i];
  if (buffer.dtype == DType::bf16) return static_cast<double>(static_cast<float>(buffer.as<BFloat16>()[i]));
  return static_cast<double>(buffer.as<float>()[i]);
}
void set_number(const Buffer& buffer, std::int64_t i, double value) {
  if (buffer.dtype == DType::i32) {
    buffer.as<std::int32_t>()[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(value));
  } else if (buffer.dtype == DType::bf16) {
    buffer.as<BFloat16>()[i] = BFloat16(static_cast<float>(value));
  } else {
    buffer.as<float>()[i] = static_cast<float>(value);
  }
}

/// Places where the first `kept` elements of each line are in order.
void order_lines(const Buffer& in, std::int32_t* ids, const Lines& lines, std::int64_t kept, bool is_descending) {
  std::vector<double> values(static_cast<std::size_t>(lines.count));
  std::vector<std::int32_t> places(values.size());
  const auto before = [&](std::int32_t a, std::int32_t b) {  // NaN is above all
    double left = values[static_cast<std::size_t>(a)], right = values[static_cast<std::size_t>(b)];
    if (is_descending) std::swap(left, right);
    if (std::isnan(left) || std::isnan(right)) {
      if (std::isnan(left) != std::isnan(right)) return std::isnan(right);
      return a < b;
    }
    return left != right ? left < right : a < b;
  };
  for (std::int64_t line = 0; line < lines.lines(); ++line) {
    const std::int64_t first = lines.first(line);
    for (std::int64_t i = 0; i < lines.count; ++i)
      values[static_cast<std::size_t>(i)] = number(in, first + i * lines.inner);
    std::iota(places.begin(), places.end(), 0);
    std::partial_sort(places.begin(), places.begin() + kept, places.end(), before);
    const std::int64_t to = line / lines.inner * lines.inner * kept + line % lines.inner;
    for (std::int64_t i = 0; i < kept; ++i) ids[to + i * lines.inner] = places[static_cast<std::size_t>(i)];
  }
}

Tensor ordered_ids(const Tensor& x, int dim, std::int64_t kept, bool is_descending) {
  Context& context = x.context();
  Tensor ids = Tensor::empty(context, with_size(x.shape(), dim, kept), DType::i32);
  if (ids.numel() == 0) return ids;
  fill_on_host(context, {"order", {x.buffer()}, {ids.buffer()}},
               [lines = lines_of(x.shape(), dim), kept, is_descending](const std::vector<Buffer>& reads,
                                                                       const std::vector<Buffer>& writes) {
                 order_lines(reads[0], writes[0].as<std::int32_t>(), lines, kept, is_descending);
               });
  return ids;
}

/// Sums of each line's elements up to this one, or from this one on.
Tensor running_sums(const Tensor& x, int dim, bool is_backward) {
  Context& context = x.context();
  Tensor y = Tensor::empty(context, x.shape(), x.dtype());
  if (y.numel() == 0) return y;
  fill_on_host(context, {"cumsum", {x.buffer()}, {y.buffer()}},
               [lines = lines_of(x.shape(), dim), is_backward](const std::vector<Buffer>& reads,
                                                               const std::vector<Buffer>& writes) {
                 for (std::int64_t line = 0; line < lines.lines(); ++line) {
                   double sum = 0;
                   for (std::int64_t i = 0; i < lines.count; ++i) {
                     const std::int64_t at = lines.first(line) + (is_backward ? lines.count - 1 - i : i) * lines.inner;
                     sum += number(reads[0], at);
                     set_number(writes[0], at, sum);
                   }
                 }
               });
  return y;
}

}  // namespace

Ordered topk(const Tensor& x, std::int64_t count, int dim, bool is_largest) {
  require_number("topk", x);
  const int d = dim_of("topk", x.shape(), dim);
  if (count < 0 || count > x.shape()[d])
    throw UsageError(fmt::format("op topk: {} of dim {} of {}", count, d, x.describe()), "ask for no more than it has");
  const Tensor ids = ordered_ids(x, d, count, is_largest);
  return {gather(x, d, ids), ids};
}

Ordered sort(const Tensor& x, int dim, bool is_descending) {
  require_number("sort", x);
  return topk(x, x.shape()[dim_of("sort", x.shape(), dim)], dim, is_descending);
}

Tensor argsort(const Tensor& x, int dim, bool is_descending) {
  require_number("argsort", x);
  const int d = dim_of("argsort", x.shape(), dim);
  return ordered_ids(x, d, x.shape()[d], is_descending);
}

Tensor cumsum(const Tensor& x, int dim) {
  require_number("cumsum", x);
  const int d = dim_of("cumsum", x.shape(), dim);
  Tensor y = running_sums(x, d, false);
  if (x.dtype() != DType::i32)
    record_op(y, "cumsum", {x}, {}, [d](const Tensor& dy) { return std::vector<Tensor>{running_sums(dy, d, true)}; });
  return y;
}

}  // namespace zs
