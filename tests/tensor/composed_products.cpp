#include <cmath>
#include <numeric>

#include "runtime/tensor/convolution.h"
#include "runtime/tensor/dot_product_attention.h"
#include "runtime/tensor/einsum.h"
#include "tests/tensor/op_by_elements.h"

// Products that are made of matmul: by pattern, attention, convolutions; and images that grow.
namespace zs::test {
namespace {

void add_einsums(std::vector<NamedOp>& ops) {
  const auto add = [&](const char* pattern, const std::vector<Shape>& shapes, const Shape& out, const Shape& inner) {
    // Letters by name: those of the result, then those that are summed
    const std::string text = pattern;
    std::vector<Argument> arguments;
    for (std::size_t i = 0; i < shapes.size(); ++i)
      arguments.push_back(normal(shapes[i], i == 0 ? "a" : i == 1 ? "b" : "c"));
    ops.push_back({"einsum " + text, op_of(
                                         arguments, [text](const Tensors& x) { return einsum(text, x); },
                                         [=](const Arguments& a) {
                                           std::string rest = text, letters = text.substr(text.find("->") + 2);
                                           for (const char c : text.substr(0, text.find("->")))
                                             if (c != ',' && letters.find(c) == std::string::npos) letters += c;
                                           std::vector<std::string> parts(1);
                                           for (const char c : text.substr(0, text.find("->")))
                                             if (c == ',')
                                               parts.emplace_back();
                                             else
                                               parts.back() += c;
                                           Values y;
                                           for_each_index(out, [&](const Index& i) {
                                             double sum = 0;
                                             for_each_index(inner, [&](const Index& j) {
                                               Index all = i;
                                               all.insert(all.end(), j.begin(), j.end());
                                               double term = 1;
                                               for (std::size_t k = 0; k < parts.size(); ++k) {
                                                 Index at;
                                                 for (const char c : parts[k]) at.push_back(all[letters.find(c)]);
                                                 term *= element(a[k], shapes[k], at);
                                               }
                                               sum += term;
                                             });
                                             y.push_back(sum);
                                           });
                                           return y;
                                         })});
  };
  add("bqd,bkd->bqk", {{2, 3, 4}, {2, 5, 4}}, {2, 3, 5}, {4});
  add("ij,j->i", {{3, 4}, {4}}, {3}, {4});
  add("ij->j", {{3, 4}}, {4}, {3});
  add("ab,cd->dbca", {{2, 3}, {4, 2}}, {2, 3, 4, 2}, {});
  add("ab,bc,cd->da", {{2, 3}, {3, 4}, {4, 2}}, {2, 2}, {3, 4});
}

/// Attention by its formula; sees(t, s): whether query t sees key s.
NamedOp attention_op(const char* name, std::int64_t heads, std::int64_t kv_heads, std::int64_t tokens,
                     std::int64_t seen, bool is_causal, bool has_mask) {
  constexpr std::int64_t kBatch = 2, kDim = 4;
  const Shape q{kBatch, heads, tokens, kDim}, k{kBatch, kv_heads, seen, kDim};
  const auto is_masked = [=](std::int64_t t, std::int64_t s) { return has_mask && (t + s) % 3 == 1; };
  return {name, op_of(
                    {normal(q, "q"), normal(k, "k"), normal(k, "v")},
                    [=](const Tensors& x) {
                      DotProductOptions options{.is_causal = is_causal};
                      std::vector<float> mask;
                      for (std::int64_t i = 0; i < tokens * seen; ++i)
                        mask.push_back(is_masked(i / seen, i % seen) ? 0.0f : 1.0f);
                      if (has_mask) options.mask = Tensor::from_host(x[0].context(), {tokens, seen}, mask);
                      return dot_product_attention(x[0], x[1], x[2], options);
                    },
                    [=](const Arguments& a) {
                      Values y;
                      for_each_index(q, [&](const Index& i) {
                        Values scores, values;
                        for (std::int64_t s = 0; s < seen; ++s) {
                          if ((is_causal && s > seen - tokens + i[2]) || is_masked(i[2], s)) continue;
                          const std::int64_t group = i[1] / (heads / kv_heads);
                          double score = 0;
                          for (std::int64_t d = 0; d < kDim; ++d)
                            score += element(a[0], q, {i[0], i[1], i[2], d}) * element(a[1], k, {i[0], group, s, d});
                          scores.push_back(score / std::sqrt(static_cast<double>(kDim)));
                          values.push_back(element(a[2], k, {i[0], group, s, i[3]}));
                        }
                        const Values shares = softmax_of(scores);
                        y.push_back(std::inner_product(shares.begin(), shares.end(), values.begin(), 0.0));
                      });
                      return y;
                    })};
}

/// A convolution, or a transposed one, by its formula.
NamedOp convolution(const char* name, const Shape& x, const Shape& weight, const Shape& out,
                    const ConvolutionOptions& options, bool is_transposed) {
  const std::int64_t channels = out[1];
  return {name, op_of(
                    {normal(x, "x"), normal(weight, "weight"), normal({channels}, "bias")},
                    [=](const Tensors& in) {
                      return is_transposed ? conv_transpose2d(in[0], in[1], in[2], options)
                                           : conv2d(in[0], in[1], in[2], options);
                    },
                    [=](const Arguments& a) {
                      Values y(static_cast<std::size_t>(out.numel()));
                      const Shape& image = is_transposed ? out : x;   // the side that windows see
                      const Shape& places = is_transposed ? x : out;  // the side with an element for each window
                      const std::int64_t groups = options.groups;
                      for_each_index(
                          {x[0], weight[0], weight[1], weight[2] * weight[3], places[2], places[3]},
                          [&](const Index& i) {
                            const std::int64_t row = i[3] / weight[3], column = i[3] % weight[3];
                            const std::int64_t h = i[4] * options.stride + row * options.dilation - options.padding;
                            const std::int64_t w = i[5] * options.stride + column * options.dilation - options.padding;
                            if (h < 0 || w < 0 || h >= image[2] || w >= image[3]) return;
                            const std::int64_t group = i[1] / (weight[0] / groups);
                            const Index seen{i[0], group * weight[1] + i[2], h, w}, place{i[0], i[1], i[4], i[5]};
                            const Index& from = is_transposed ? place : seen;
                            const Index& to = is_transposed ? seen : place;
                            std::size_t at = 0;
                            for (int d = 0; d < 4; ++d)
                              at = at * static_cast<std::size_t>(out[d]) +
                                   static_cast<std::size_t>(to[static_cast<std::size_t>(d)]);
                            y[at] += element(a[0], x, from) * element(a[1], weight, {i[1], i[2], row, column});
                          });
                      std::size_t at = 0;
                      for_each_index(out, [&](const Index& i) { y[at++] += a[2][static_cast<std::size_t>(i[1])]; });
                      return y;
                    })};
}

void add_convolutions(std::vector<NamedOp>& ops) {
  ops.push_back(convolution("conv2d", {2, 3, 5, 4}, {2, 3, 3, 2}, {2, 2, 3, 3}, {.stride = 2, .padding = 1}, false));
  ops.push_back(
      convolution("conv2d in groups", {1, 4, 6, 5}, {2, 2, 2, 2}, {1, 2, 4, 3}, {.dilation = 2, .groups = 2}, false));
  ops.push_back(convolution("conv_transpose2d", {2, 3, 2, 3}, {3, 2, 3, 2}, {2, 2, 4, 5},
                            {.stride = 2, .padding = 1, .output_padding = 1}, true));
  ops.push_back(convolution("conv_transpose2d in groups", {1, 4, 2, 2}, {4, 1, 2, 2}, {1, 2, 4, 4},
                            {.dilation = 2, .groups = 2}, true));
  ops.push_back({"conv1d", op_of(
                               {normal({1, 2, 5}, "x"), normal({1, 2, 2}, "weight")},
                               [](const Tensors& x) { return conv1d(x[0], x[1], {}, {.padding = 1, .dilation = 3}); },
                               [](const Arguments& a) {
                                 Values y(4);
                                 for (int t = 0; t < 4; ++t)
                                   for (int c = 0; c < 2; ++c)
                                     for (int k = 0; k < 2; ++k) {
                                       const int at = t + 3 * k - 1;
                                       if (at >= 0 && at < 5)
                                         y[static_cast<std::size_t>(t)] += a[0][static_cast<std::size_t>(c * 5 + at)] *
                                                                           a[1][static_cast<std::size_t>(c * 2 + k)];
                                     }
                                 return y;
                               })});
  ops.push_back(
      {"conv_transpose1d", op_of(
                               {normal({1, 1, 3}, "x"), normal({1, 1, 2}, "weight")},
                               [](const Tensors& x) { return conv_transpose1d(x[0], x[1], {}, {.stride = 2}); },
                               [](const Arguments& a) {
                                 Values y;
                                 for (const double x : a[0]) y.insert(y.end(), {x * a[1][0], x * a[1][1]});
                                 return y;
                               })});
  ops.push_back(
      {"upsample_nearest", op_of(
                               {normal({1, 2, 2, 3}, "x")}, [](const Tensors& x) { return upsample_nearest(x[0], 2); },
                               [](const Arguments& a) {
                                 Values y;
                                 for_each_index({1, 2, 4, 6}, [&](const Index& i) {
                                   y.push_back(element(a[0], {1, 2, 2, 3}, {0, i[1], i[2] / 2, i[3] / 2}));
                                 });
                                 return y;
                               })});
  // Two to four pixels: PyTorch gives shares of 1, 3/4, 1/4, 0 of the first
  ops.push_back({"upsample_bilinear",
                 op_of(
                     {normal({1, 1, 2, 2}, "x")}, [](const Tensors& x) { return upsample_bilinear(x[0], 4, 4); },
                     [](const Arguments& a) {
                       const double first[] = {1, 0.75, 0.25, 0};
                       Values y;
                       for_each_index({4, 4}, [&](const Index& i) {
                         const double r = first[i[0]], c = first[i[1]];
                         y.push_back(r * (c * a[0][0] + (1 - c) * a[0][1]) +
                                     (1 - r) * (c * a[0][2] + (1 - c) * a[0][3]));
                       });
                       return y;
                     })});
}

}  // namespace

void add_products(std::vector<NamedOp>& ops) {
  add_einsums(ops);
  ops.push_back(attention_op("attention to others", 4, 2, 3, 5, false, false));
  ops.push_back(attention_op("attention with a mask", 2, 2, 3, 4, true, true));
  ops.push_back(attention_op("attention, causal", 4, 2, 3, 3, true, false));
  add_convolutions(ops);
}

}  // namespace zs::test
