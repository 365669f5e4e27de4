#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/tensor/losses.h"
#include "runtime/tensor/ordering.h"
#include "runtime/tensor/pointwise.h"
#include "runtime/tensor/scatter.h"
#include "runtime/tensor/statistics.h"
#include "runtime/tensor/values.h"
#include "tests/tensor/op_by_elements.h"

// Ops that are made of others: of single elements, of lines, losses.
namespace zs::test {
namespace {

using Ids = std::vector<std::int32_t>;

Tensor ids_of(const Tensor& beside, const Shape& shape, const Ids& ids) {
  return Tensor::from_host(beside.context(), shape, ids);
}

void add_pointwise(std::vector<NamedOp>& ops) {
  const auto add = [&](const char* name, Tensor (*op)(const Tensor&), double (*f)(double), double deviation = 1) {
    ops.push_back({name, op_of(
                             {normal({3, 11}, name, deviation, 0.01)}, [op](const Tensors& x) { return op(x[0]); },
                             [f](const Arguments& a) {
                               Values y;
                               for (const double x : a[0]) y.push_back(f(x));
                               return y;
                             })});
  };
  add("square", square, [](double x) { return x * x; });
  add(
      "leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.25f); },
      [](double x) { return x > 0 ? x : 0.25 * x; });
  add(
      "elu", [](const Tensor& x) { return elu(x, 0.5f); }, [](double x) { return x > 0 ? x : 0.5 * std::expm1(x); });
  add(
      "softplus", softplus, [](double x) { return std::log1p(std::exp(x)); }, 4);
  add(
      "log_sigmoid", log_sigmoid, [](double x) { return -std::log1p(std::exp(-x)); }, 4);
  add("sin", sin, [](double x) { return std::sin(x); });
  add("cos", cos, [](double x) { return std::cos(x); });
  const auto add_pair = [&](const char* name, Tensor (*op)(const Tensor&, const Tensor&), double (*f)(double, double)) {
    ops.push_back({name, op_of(
                             {normal({3, 4}, "a"), normal({4}, "b")}, [op](const Tensors& x) { return op(x[0], x[1]); },
                             [f](const Arguments& a) {
                               Values y;
                               for (std::size_t i = 0; i < 12; ++i) y.push_back(f(a[0][i], a[1][i % 4]));
                               return y;
                             })});
  };
  add_pair("maximum", maximum, [](double a, double b) { return std::max(a, b); });
  add_pair("minimum", minimum, [](double a, double b) { return std::min(a, b); });
  add_pair(
      "masks", [](const Tensor& a, const Tensor& b) { return where(ge(a, b) * ne(a, b), a, where(le(a, 0.0f), b, a)); },
      [](double a, double b) { return a > b    ? a
                                      : a <= 0 ? b
                                               : a; });
}

/// f of each line of the last dim of (3, 5), a number or as many as it had.
NamedOp by_line(const char* name, const Run& run, const std::function<Values(const Values&)>& f) {
  return {name, op_of({normal({3, 5}, name)}, run, [f](const Arguments& a) {
            Values y;
            for (auto at = a[0].begin(); at != a[0].end(); at += 5) {
              const Values line = f(Values(at, at + 5));
              y.insert(y.end(), line.begin(), line.end());
            }
            return y;
          })};
}

double squares(const Values& x) { return std::inner_product(x.begin(), x.end(), x.begin(), 0.0); }
double spread(const Values& x) {
  const auto n = static_cast<double>(x.size());
  return (squares(x) - total(x) * total(x) / n) / (n - 1);
}

void add_lines(std::vector<NamedOp>& ops) {
  ops.push_back(by_line(
      "min", [](const Tensors& x) { return min(x[0], {1}); },
      [](const Values& x) { return Values{*std::min_element(x.begin(), x.end())}; }));
  ops.push_back(by_line(
      "variance", [](const Tensors& x) { return variance(x[0], {1}); },
      [](const Values& x) { return Values{spread(x)}; }));
  ops.push_back(by_line(
      "deviation", [](const Tensors& x) { return deviation(x[0], {1}); },
      [](const Values& x) { return Values{std::sqrt(spread(x))}; }));
  ops.push_back(by_line(
      "norm", [](const Tensors& x) { return norm(x[0], {1}); },
      [](const Values& x) { return Values{std::sqrt(squares(x))}; }));
  ops.push_back(by_line(
      "normalize", [](const Tensors& x) { return normalize(x[0]); },
      [](const Values& x) {
        Values y = x;
        for (double& value : y) value /= std::sqrt(squares(x));
        return y;
      }));
  ops.push_back(by_line(
      "logsumexp", [](const Tensors& x) { return logsumexp(x[0], {1}); },
      [](const Values& x) {
        double sum = 0;
        for (const double value : x) sum += std::exp(value);
        return Values{std::log(sum)};
      }));
  ops.push_back(by_line(
      "sort", [](const Tensors& x) { return sort(x[0]).values; },
      [](Values x) {
        std::sort(x.begin(), x.end());
        return x;
      }));
  ops.push_back(by_line(
      "topk", [](const Tensors& x) { return topk(x[0], 2).values; },
      [](Values x) {
        std::sort(x.rbegin(), x.rend());
        x.resize(2);
        return x;
      }));
  ops.push_back(by_line(
      "cumsum", [](const Tensors& x) { return cumsum(x[0], 1); },
      [](Values x) {
        std::partial_sum(x.begin(), x.end(), x.begin());
        return x;
      }));
  ops.push_back(by_line(
      "cumsum of columns", [](const Tensors& x) { return transpose(cumsum(transpose(x[0], 0, 1), 0), 0, 1); },
      [](Values x) {
        std::partial_sum(x.begin(), x.end(), x.begin());
        return x;
      }));
}

void add_additions(std::vector<NamedOp>& ops) {
  const Ids places = {0, 2, 2, 1, 1, 1};  // (2, 3): which of 4 columns
  ops.push_back({"scatter_add", op_of(
                                    {normal({2, 4}, "x"), normal({2, 3}, "source")},
                                    [=](const Tensors& x) {
                                      return scatter_add(x[0], 1, ids_of(x[0], {2, 3}, places), x[1]);
                                    },
                                    [=](const Arguments& a) {
                                      Values y = a[0];
                                      for (std::size_t i = 0; i < 6; ++i)
                                        y[i / 3 * 4 + static_cast<std::size_t>(places[i])] += a[1][i];
                                      return y;
                                    })});
  const Ids lines = {3, 0, 3};
  ops.push_back({"index_add", op_of(
                                  {normal({2, 4, 2}, "x"), normal({2, 3, 2}, "source")},
                                  [=](const Tensors& x) { return index_add(x[0], 1, ids_of(x[0], {3}, lines), x[1]); },
                                  [=](const Arguments& a) {
                                    Values y = a[0];
                                    for (std::size_t i = 0; i < 12; ++i)
                                      y[i / 6 * 8 + static_cast<std::size_t>(lines[i / 2 % 3]) * 2 + i % 2] += a[1][i];
                                    return y;
                                  })});
  ops.push_back({"segment_mean", op_of(
                                     {normal({3, 2}, "x")},
                                     [=](const Tensors& x) {
                                       return segment_mean(x[0], ids_of(x[0], {3}, {2, 0, 2}), 4);
                                     },
                                     [](const Arguments& a) {
                                       const Values& x = a[0];
                                       return Values{x[2], x[3], 0, 0, (x[0] + x[4]) / 2, (x[1] + x[5]) / 2, 0, 0};
                                     })});
}

/// The mean of f over the elements of (3, 5) predictions and targets, the latter as `of` gives them.
NamedOp pair_loss(const char* name, const Run& run, double (*f)(double, double)) {
  return {name, op_of({normal({3, 5}, "a"), normal({3, 5}, "b")}, run, [f](const Arguments& a) {
            double sum = 0;
            for (std::size_t i = 0; i < 15; ++i) sum += f(a[0][i], a[1][i]);
            return Values{sum / 15};
          })};
}

/// The mean over three rows of f(row of a, row of b).
NamedOp row_loss(const char* name, const Run& run, const std::function<double(const Values&, const Values&)>& f) {
  return {name, op_of({normal({3, 5}, "a"), normal({3, 5}, "b")}, run, [f](const Arguments& a) {
            double sum = 0;
            for (std::ptrdiff_t i = 0; i < 15; i += 5)
              sum += f(Values(a[0].begin() + i, a[0].begin() + i + 5), Values(a[1].begin() + i, a[1].begin() + i + 5));
            return Values{sum / 3};
          })};
}

/// PyTorch's label smoothing, of targets some of which are ignored, with class weights.
NamedOp smoothed(bool has_weights) {
  const Ids targets = {1, -100, 4};
  const std::vector<float> weights = {0.5f, 2, 1, 0.25f, 3};
  OpUnderTest op{{normal({3, 5}, "logits")}, {}, {}, {}};
  op.run = [=](Context& context, const Tensors& x, const std::vector<Parameter*>&) {
    CrossEntropyOptions options{.ignored = -100};
    if (has_weights) options.weights = Tensor::from_host(context, {5}, weights);
    return smoothed_cross_entropy(x[0], Tensor::from_host(context, {3}, targets), 0.3f, options);
  };
  op.reference = [=](const Arguments& a) {
    double hard = 0, soft = 0, weight = 0;
    for (std::size_t r : {0u, 2u}) {
      const auto first = a[0].begin() + static_cast<std::ptrdiff_t>(r * 5);
      const Values p = softmax_of(Values(first, first + 5));
      const auto target = static_cast<std::size_t>(targets[r]);
      for (std::size_t c = 0; c < 5; ++c)
        soft -= (has_weights ? static_cast<double>(weights[c]) : 1.0) * std::log(p[c]) / 5;
      const double own = has_weights ? static_cast<double>(weights[target]) : 1.0;
      hard -= own * std::log(p[target]);
      weight += own;
    }
    const auto share = static_cast<double>(0.3f);
    return Values{((1 - share) * hard + share * soft) / weight};
  };
  return {"smoothed_cross_entropy", op};
}

void add_losses(std::vector<NamedOp>& ops) {
  ops.push_back(pair_loss(
      "l1_loss", [](const Tensors& x) { return l1_loss(x[0], x[1]); },
      [](double a, double b) { return std::abs(a - b); }));
  ops.push_back(pair_loss(
      "smooth_l1_loss", [](const Tensors& x) { return smooth_l1_loss(x[0], x[1], 0.5f); },
      [](double a, double b) { return std::abs(a - b) < 0.5 ? (a - b) * (a - b) : std::abs(a - b) - 0.25; }));
  ops.push_back(pair_loss(
      "bce_with_logits", [](const Tensors& x) { return bce_with_logits(x[0], sigmoid(x[1])); },
      [](double a, double b) {
        return -sigmoid_of(b) * std::log(sigmoid_of(a)) - (1 - sigmoid_of(b)) * std::log(1 - sigmoid_of(a));
      }));
  ops.push_back(pair_loss(
      "bce_with_logits", [](const Tensors& x) { return bce_with_logits(x[0], sigmoid(x[1]), 3); },
      [](double a, double b) {
        return -3 * sigmoid_of(b) * std::log(sigmoid_of(a)) - (1 - sigmoid_of(b)) * std::log(1 - sigmoid_of(a));
      }));
  ops.push_back(row_loss(
      "kl_div", [](const Tensors& x) { return kl_div(log_softmax(x[0]), softmax(x[1])); },
      [](const Values& a, const Values& b) {
        const Values q = softmax_of(a), p = softmax_of(b);
        double sum = 0;
        for (std::size_t c = 0; c < 5; ++c) sum += p[c] * std::log(p[c] / q[c]);
        return sum;
      }));
  ops.push_back(row_loss(
      "soft_cross_entropy", [](const Tensors& x) { return soft_cross_entropy(x[0], softmax(x[1])); },
      [](const Values& a, const Values& b) {
        const Values q = softmax_of(a), p = softmax_of(b);
        double sum = 0;
        for (std::size_t c = 0; c < 5; ++c) sum -= p[c] * std::log(q[c]);
        return sum;
      }));
  ops.push_back(
      {"cosine_similarity",
       op_of(
           {normal({3, 5}, "a"), normal({3, 5}, "b")}, [](const Tensors& x) { return cosine_similarity(x[0], x[1]); },
           [](const Arguments& a) {
             Values y;
             for (std::ptrdiff_t i = 0; i < 15; i += 5) {
               const Values left(a[0].begin() + i, a[0].begin() + i + 5);
               const Values right(a[1].begin() + i, a[1].begin() + i + 5);
               y.push_back(std::inner_product(left.begin(), left.end(), right.begin(), 0.0) /
                           std::sqrt(squares(left) * squares(right)));
             }
             return y;
           })});
  ops.push_back(smoothed(false));
  ops.push_back(smoothed(true));
}

}  // namespace

void add_composed(std::vector<NamedOp>& ops) {
  add_pointwise(ops);
  add_lines(ops);
  add_additions(ops);
  add_losses(ops);
  add_products(ops);
}

}  // namespace zs::test
