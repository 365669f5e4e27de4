#include "tests/tensor/general_ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/tensor/op_by_elements.h"

namespace zs::test {
namespace {

using Parameters = std::vector<Parameter*>;
using Unary = std::function<double(double)>;
using Binary = std::function<double(double, double)>;

NamedOp unary(const char* name, Tensor (*op)(const Tensor&), const Unary& f, double deviation = 1, double mean = 0) {
  return {name, op_of(
                    {normal({3, 37}, name, deviation, mean)}, [op](const Tensors& x) { return op(x[0]); },
                    [f](const Arguments& a) {
                      Values y;
                      for (const double x : a[0]) y.push_back(f(x));
                      return y;
                    })};
}

NamedOp binary(const char* name, const std::function<Tensor(const Tensor&, const Tensor&)>& op, const Binary& f,
               const std::vector<Shape>& shapes, double deviation = 1, double mean = 0) {
  const Shape a = shapes[0], b = shapes[1], out = shapes[2];
  return {name, op_of(
                    {normal(a, "a", deviation, mean), normal(b, "b", deviation, mean)},
                    [op](const Tensors& x) { return op(x[0], x[1]); },
                    [=](const Arguments& args) {
                      Values y;
                      for_each_index(
                          out, [&](const Index& i) { y.push_back(f(element(args[0], a, i), element(args[1], b, i))); });
                      return y;
                    })};
}

/// One result for each line of the dims that are not in `dims`: of the elements of that line, in order.
NamedOp reduction(const char* name, const Shape& shape, const std::vector<int>& dims, const Run& run,
                  const std::function<double(const Values&)>& f) {
  Argument x = normal(shape, name);
  // Of a large tensor every 29th element, which is prime to its dims, so that each place of each dim is among them.
  for (std::size_t i = 0; shape.numel() > 1000 && i < x.values.size(); i += 29) x.sample.push_back(i);
  return {name, op_of({x}, run, [=](const Arguments& a) {
            Shape kept = shape;
            for (const int d : dims) {
              Index sizes(kept.dims().begin(), kept.dims().end());
              sizes[static_cast<std::size_t>(d)] = 1;
              kept = Shape(std::span<const std::int64_t>(sizes));
            }
            std::vector<Values> lines(static_cast<std::size_t>(kept.numel()));
            Values places(lines.size());
            std::iota(places.begin(), places.end(), 0.0);
            std::size_t at = 0;
            for_each_index(shape, [&](const Index& i) {
              lines[static_cast<std::size_t>(element(places, kept, i))].push_back(a[0][at++]);
            });
            Values y;
            for (const Values& line : lines) y.push_back(f(line));
            return y;
          })};
}

/// Of rows of `width`, or, where inner is not 1, of columns.
NamedOp along_dim(const char* name, const Shape& shape, int dim, const Run& run,
                  const std::function<Values(const Values&)>& f) {
  return {name, op_of({normal(shape, name, 2)}, run, [=](const Arguments& a) {
            const auto sizes = shape.dims();
            std::int64_t inner = 1;
            for (int d = dim + 1; d < shape.rank(); ++d) inner *= sizes[static_cast<std::size_t>(d)];
            const std::int64_t count = shape[dim], lines = shape.numel() / count;
            Values y(a[0].size());
            for (std::int64_t line = 0; line < lines; ++line) {
              const std::int64_t first = line / inner * inner * count + line % inner;
              Values x;
              for (std::int64_t i = 0; i < count; ++i) x.push_back(a[0][static_cast<std::size_t>(first + i * inner)]);
              const Values results = f(x);
              for (std::int64_t i = 0; i < count; ++i)
                y[static_cast<std::size_t>(first + i * inner)] = results[static_cast<std::size_t>(i)];
            }
            return y;
          })};
}

NamedOp product(const char* name, const Shape& a, const Shape& b, const Shape& out) {
  return {name, op_of(
                    {normal(a, "a"), normal(b, "b")}, [](const Tensors& x) { return matmul(x[0], x[1]); },
                    [=](const Arguments& args) {
                      Values y;
                      for_each_index(out, [&](const Index& i) {
                        double sum = 0;
                        for (std::int64_t k = 0; k < a[-1]; ++k) {
                          Index left = i, right = i;
                          left[left.size() - 1] = k;
                          right[right.size() - 2] = k;
                          sum += element(args[0], a, left) * element(args[1], b, right);
                        }
                        y.push_back(sum);
                      });
                      return y;
                    })};
}

constexpr std::int32_t kIgnored = -100;

NamedOp cross_entropy_op(const char* name, std::vector<std::int32_t> targets, bool ignores,
                         const std::vector<float>& weights) {
  constexpr std::int64_t kClasses = 5;
  const auto rows = static_cast<std::int64_t>(targets.size());
  OpUnderTest op{{normal({rows, kClasses}, name)}, {}, {}, {}};
  op.run = [=](Context& context, const Tensors& x, const Parameters&) {
    CrossEntropyOptions options;
    if (ignores) options.ignored = kIgnored;
    if (!weights.empty()) options.weights = Tensor::from_host(context, {kClasses}, weights);
    return cross_entropy(x[0], Tensor::from_host(context, {rows}, targets), options);
  };
  op.reference = [=](const Arguments& a) {
    double loss = 0, weight = 0;
    for (std::size_t r = 0; r < targets.size(); ++r) {
      if (targets[r] == kIgnored) continue;
      const Values row(a[0].begin() + static_cast<std::ptrdiff_t>(r * kClasses),
                       a[0].begin() + static_cast<std::ptrdiff_t>((r + 1) * kClasses));
      const auto target = static_cast<std::size_t>(targets[r]);
      const double mine = weights.empty() ? 1.0 : weights[target];
      loss -= mine * std::log(softmax_of(row)[target]);
      weight += mine;
    }
    return Values{weight > 0 ? loss / weight : 0};
  };
  return {name, op};
}

void add_elementwise(std::vector<NamedOp>& ops) {
  const std::vector<std::vector<Shape>> shapes = {{{2, 3, 4}, {2, 3, 4}, {2, 3, 4}},
                                                  {{2, 3, 4}, {3, 1}, {2, 3, 4}},
                                                  {{5}, {2, 4, 5}, {2, 4, 5}},
                                                  {{4, 1, 3}, {1, 6, 1}, {4, 6, 3}},
                                                  {{7}, {1}, {7}}};
  for (const auto& s : shapes) {
    ops.push_back(binary(
        "add", [](const Tensor& a, const Tensor& b) { return a + b; }, [](double a, double b) { return a + b; }, s));
    ops.push_back(binary(
        "sub", [](const Tensor& a, const Tensor& b) { return a - b; }, [](double a, double b) { return a - b; }, s));
    ops.push_back(binary(
        "mul", [](const Tensor& a, const Tensor& b) { return a * b; }, [](double a, double b) { return a * b; }, s));
    ops.push_back(binary(
        "div", [](const Tensor& a, const Tensor& b) { return a / b; }, [](double a, double b) { return a / b; }, s, 0.3,
        2));
    ops.push_back(binary(
        "pow", [](const Tensor& a, const Tensor& b) { return pow(a, b); },
        [](double a, double b) { return std::pow(a, b); }, s, 0.2, 1.5));
    ops.push_back(binary(
        "where", [](const Tensor& a, const Tensor& b) { return where(gt(a, b), a, b); },
        [](double a, double b) { return std::max(a, b); }, s));
    ops.push_back(binary(
        "where_lt", [](const Tensor& a, const Tensor& b) { return where(lt(a, b), a, b); },
        [](double a, double b) { return std::min(a, b); }, s));
  }
  ops.push_back(unary(
      "square", [](const Tensor& x) { return x * x; }, [](double x) { return x * x; }));
  ops.push_back(unary("neg", neg, [](double x) { return -x; }));
  ops.push_back(unary("exp", exp, [](double x) { return std::exp(x); }));
  ops.push_back(unary(
      "log", log, [](double x) { return std::log(x); }, 0.3, 3));
  ops.push_back(unary(
      "sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0.3, 3));
  ops.push_back(unary(
      "rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.3, 3));
  ops.push_back(unary("tanh", tanh, [](double x) { return std::tanh(x); }));
  ops.push_back(unary("sigmoid", sigmoid, sigmoid_of));
  ops.push_back(unary("relu", relu, [](double x) { return std::max(x, 0.0); }));
  ops.push_back(unary("silu", silu, [](double x) { return x * sigmoid_of(x); }));
  ops.push_back(unary(
      "abs", abs, [](double x) { return std::abs(x); }, 1, 0.1));
  ops.push_back(unary(
      "clamp", [](const Tensor& x) { return clamp(x, -0.5f, 0.7f); },
      [](double x) { return std::clamp(x, -0.5, static_cast<double>(0.7f)); }));
  ops.push_back(unary(
      "numbers", [](const Tensor& x) { return (3.0f - (2.0f * x + 1.0f) / 4.0f) - 0.5f; },
      [](double x) { return 2.5 - (2 * x + 1) / 4; }));
  ops.push_back(unary(
      "number_div", [](const Tensor& x) { return 2.0f / x; }, [](double x) { return 2 / x; }, 0.3, 2));
  ops.push_back(unary(
      "pow_number", [](const Tensor& x) { return pow(x, 3.0f); }, [](double x) { return x * x * x; }));
  ops.push_back(unary(
      "where_number", [](const Tensor& x) { return where(lt(x, 0.25f), -1.0f, x); },
      [](double x) { return x < 0.25 ? -1 : x; }));
  ops.push_back(unary(
      "where_not_number", [](const Tensor& x) { return where(gt(x, 0.25f), x, 2.0f); },
      [](double x) { return x < 0.25 ? 2 : x; }));
}

/// Ops of which each stands in another's way: they are of parts of one tensor, or their gradients are of two at once.
void add_shared(std::vector<NamedOp>& ops) {
  ops.push_back(binary(
      "where_eq", [](const Tensor& a, const Tensor& b) { return where(eq(relu(a), relu(b)), a, b); },
      [](double a, double b) { return a < 0 && b < 0 ? a : b; }, {{3, 5}, {3, 5}, {3, 5}}));
  const auto turned = [](const Tensor& a) { return concat({slice(a, 1, 1, 2), slice(a, 1, 0, 1)}, 1); };
  ops.push_back({"shared", op_of(
                               {normal({4, 3}, "a"), normal({4, 3}, "b")},
                               [=](const Tensors& x) {
                                 const Tensor parts = turned(x[0]);
                                 return add(parts, add(x[0], x[1]));
                               },
                               [](const Arguments& a) {
                                 Values y;
                                 for (std::size_t i = 0; i < 12; ++i)
                                   y.push_back(a[0][i / 3 * 3 + (i + 1) % 3] + a[0][i] + a[1][i]);
                                 return y;
                               })});
}

void add_reductions(std::vector<NamedOp>& ops) {
  const Shape shape{3, 4, 5, 70};
  for (const auto& dims : std::vector<std::vector<int>>{{0, 1, 2, 3}, {3}, {0}, {1, 2}, {0, 2}, {1, 3}}) {
    const auto count = [=] {
      double n = 1;
      for (const int d : dims) n *= static_cast<double>(shape[d]);
      return n;
    }();
    ops.push_back(reduction(
        "sum", shape, dims, [=](const Tensors& x) { return sum(x[0], dims); }, total));
    ops.push_back(reduction(
        "mean", shape, dims, [=](const Tensors& x) { return mean(x[0], dims, true); },
        [=](const Values& x) { return total(x) / count; }));
  }
  const Shape small{3, 4, 5};
  for (const auto& dims : std::vector<std::vector<int>>{{0, 1, 2}, {2}, {0}})
    ops.push_back(reduction(
        "max", small, dims, [=](const Tensors& x) { return max(x[0], dims); },
        [](const Values& x) { return *std::max_element(x.begin(), x.end()); }));
  ops.push_back(along_dim(
      "softmax", {3, 11}, 1, [](const Tensors& x) { return softmax(x[0]); }, softmax_of));
  ops.push_back(along_dim(
      "softmax", {3, 4, 5}, 1, [](const Tensors& x) { return softmax(x[0], 1); }, softmax_of));
  ops.push_back(along_dim(
      "log_softmax", {5, 3}, 0, [](const Tensors& x) { return log_softmax(x[0], 0); },
      [](const Values& x) {
        Values y = softmax_of(x);
        for (double& value : y) value = std::log(value);
        return y;
      }));
  ops.push_back(cross_entropy_op("cross_entropy", {0, 4, 2, 2}, false, {}));
  ops.push_back(cross_entropy_op("cross_entropy", {0, kIgnored, 2, kIgnored, 1}, true, {}));
  ops.push_back(cross_entropy_op("cross_entropy", {0, 3, 2, 1}, false, {0.5f, 2, 1, 0.25f, 0}));
  ops.push_back(cross_entropy_op("cross_entropy", {0, kIgnored, 3, 2}, true, {0.5f, 2, 1, 0.25f, 0}));
  ops.push_back(
      {"mse", op_of(
                  {normal({3, 5}, "a"), normal({3, 5}, "b")}, [](const Tensors& x) { return mse(x[0], x[1]); },
                  [](const Arguments& a) {
                    double sum = 0;
                    for (std::size_t i = 0; i < a[0].size(); ++i) sum += (a[0][i] - a[1][i]) * (a[0][i] - a[1][i]);
                    return Values{sum / static_cast<double>(a[0].size())};
                  })});
}

}  // namespace

std::vector<NamedOp> general_ops() {
  std::vector<NamedOp> ops;
  add_elementwise(ops);
  add_shared(ops);
  add_reductions(ops);
  add_moves(ops);
  add_composed(ops);
  ops.push_back(product("matmul", {3, 4}, {4, 5}, {3, 5}));
  ops.push_back(product("matmul", {2, 3, 4}, {4, 5}, {2, 3, 5}));
  ops.push_back(product("matmul", {2, 3, 7, 4}, {2, 3, 4, 5}, {2, 3, 7, 5}));
  ops.push_back(product("matmul", {3, 1, 2, 4}, {2, 4, 3}, {3, 2, 2, 3}));
  return ops;
}

}  // namespace zs::test
