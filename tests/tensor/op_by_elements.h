#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "tests/tensor/general_ops.h"

/// What the tables of general ops are made with: an op, and what it computes, element by element.
namespace zs::test {

using Tensors = std::vector<Tensor>;
using Arguments = std::vector<Values>;
using Run = std::function<Tensor(const Tensors&)>;
using Index = std::vector<std::int64_t>;

inline OpUnderTest op_of(std::vector<Argument> inputs, const Run& run,
                         const std::function<Values(const Arguments&)>& reference) {
  return {std::move(inputs),
          {},
          [run](Context&, const Tensors& x, const std::vector<Parameter*>&) { return run(x); },
          reference};
}

/// visit(index) for each element of a shape, in its order.
template <class Visit>
void for_each_index(const Shape& shape, const Visit& visit) {
  Index index(static_cast<std::size_t>(shape.rank()), 0);
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    visit(index);
    for (int d = shape.rank() - 1; d >= 0; --d) {
      if (++index[static_cast<std::size_t>(d)] < shape[d]) break;
      index[static_cast<std::size_t>(d)] = 0;
    }
  }
}

/// The element of x at this index of a shape that x is broadcast to.
inline double element(const Values& x, const Shape& shape, const Index& index) {
  std::size_t at = 0;
  const std::size_t missing = index.size() - static_cast<std::size_t>(shape.rank());
  for (int d = 0; d < shape.rank(); ++d) {
    const std::int64_t place = shape[d] == 1 ? 0 : index[missing + static_cast<std::size_t>(d)];
    at = at * static_cast<std::size_t>(shape[d]) + static_cast<std::size_t>(place);
  }
  return x.at(at);
}

inline double total(const Values& x) { return std::accumulate(x.begin(), x.end(), 0.0); }
inline double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }
inline Values softmax_of(const Values& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  Values y;
  for (const double value : x) y.push_back(std::exp(value - largest));
  const double all = total(y);
  for (double& value : y) value /= all;
  return y;
}

/// Those that move elements: by dims, by indices, into windows, apart and together.
void add_moves(std::vector<NamedOp>& ops);
/// Those that are made of others (pointwise.h, statistics.h, ordering.h, scatter.h, losses.h, einsum.h,
/// dot_product_attention.h, convolution.h); of them, the last three's.
void add_composed(std::vector<NamedOp>& ops);
void add_products(std::vector<NamedOp>& ops);

}  // namespace zs::test
