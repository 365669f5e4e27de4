#include <catch2/catch.hpp>

#include "tests/tensor/gradient_check.h"

namespace zs::test::ops_gradient_test {
namespace {

using Tensors = std::vector<Tensor>;
using Parameters = std::vector<Parameter*>;
using Arguments = std::vector<Values>;

/// The op in every precision, or f32 alone where the shapes are large.
void check_in_all_precisions(const OpUnderTest& op) {
  for (const Precisions& precisions : {kF32, kBf16, kBf16Grads}) check_gradients(op, precisions);
}

/// Every `stride`-th element, and the last.
Argument sparse(Argument argument, std::size_t stride) {
  for (std::size_t i = 0; i < argument.values.size(); i += stride) argument.sample.push_back(i);
  argument.sample.push_back(argument.values.size() - 1);
  return argument;
}

OpUnderTest embedding_op(Shape ids_shape, std::int64_t rows, std::int64_t width, std::int64_t positions) {
  const std::int64_t time = ids_shape[1];
  const auto ids = random_ids(ids_shape.numel(), rows, 5);
  OpUnderTest op{{}, {normal({rows, width}, "table")}, {}, {}};
  if (positions > 0) op.parameters.push_back(normal({positions, width}, "positions"));
  op.run = [=](Context& context, const Tensors&, const Parameters& p) {
    return embedding(Tensor::from_host(context, ids_shape, ids), *p[0], positions > 0 ? p[1] : nullptr);
  };
  op.reference = [=](const Arguments& a) {
    return ref::embedding(ids, time, a[0], positions > 0 ? &a[1] : nullptr, width);
  };
  return op;
}

OpUnderTest layer_norm_op(const Shape& shape, double mean, float eps = 1e-5f) {
  const Shape width{shape[-1]};
  return {{normal(shape, "x", 1, mean)},
          {normal(width, "gamma", 0.5, 1), normal(width, "beta")},
          [eps](Context&, const Tensors& x, const Parameters& p) { return layer_norm(x[0], *p[0], *p[1], eps); },
          [eps](const Arguments& a) { return ref::layer_norm(a[0], a[1], a[2], static_cast<double>(eps)); }};
}

OpUnderTest rms_norm_op(const Shape& shape, float eps = 1e-5f) {
  return {{normal(shape, "x")},
          {normal({shape[-1]}, "gamma", 0.5, 1)},
          [eps](Context&, const Tensors& x, const Parameters& p) { return rms_norm(x[0], *p[0], eps); },
          [eps](const Arguments& a) { return ref::rms_norm(a[0], a[1], static_cast<double>(eps)); }};
}

OpUnderTest linear_op(const Shape& shape, std::int64_t outputs, bool has_bias) {
  const std::int64_t inputs = shape[-1];
  OpUnderTest op{{normal(shape, "x")}, {normal({outputs, inputs}, "weight")}, {}, {}};
  if (has_bias) op.parameters.push_back(normal({outputs}, "bias"));
  op.run = [=](Context&, const Tensors& x, const Parameters& p) {
    return linear(x[0], *p[0], has_bias ? p[1] : nullptr);
  };
  op.reference = [=](const Arguments& a) { return ref::linear(a[0], a[1], has_bias ? &a[2] : nullptr, inputs); };
  return op;
}

OpUnderTest attention_op(const ref::Attention& dims) {
  return {{normal({dims.batch, dims.time, dims.width()}, "qkv")},
          {},
          [=](Context&, const Tensors& x, const Parameters&) {
            return causal_attention(x[0], dims.heads, dims.kv_heads, dims.window);
          },
          [=](const Arguments& a) { return ref::causal_attention(a[0], dims); }};
}

OpUnderTest rotary_op(const ref::Attention& dims, const RotaryOptions& options) {
  return {
      {normal({dims.batch, dims.time, dims.width()}, "qkv")},
      {},
      [=](Context&, const Tensors& x, const Parameters&) { return rotary(x[0], dims.heads, dims.kv_heads, options); },
      [=](const Arguments& a) { return ref::rotary(a[0], dims, options); }};
}

/// Over whole sequences, or, where there are lengths, over documents of one.
OpUnderTest sinks_op(const ref::Attention& dims, const std::vector<std::int64_t>& lengths = {}) {
  return {{normal({dims.batch, dims.time, dims.width()}, "qkv")},
          {normal({dims.heads}, "sinks")},
          [=](Context&, const Tensors& x, const Parameters& p) {
            return causal_attention(x[0], dims.heads, dims.kv_heads, dims.window,
                                    lengths.empty() ? Documents() : Documents(lengths), p[0]);
          },
          [=](const Arguments& a) {
            if (lengths.empty()) return ref::causal_attention(a[0], dims, &a[1]);
            Values y;
            auto begin = a[0].begin();
            for (const std::int64_t length : lengths) {
              ref::Attention own = dims;
              own.time = length;
              const auto end = begin + length * dims.width();
              const Values part = ref::causal_attention(Values(begin, end), own, &a[1]);
              y.insert(y.end(), part.begin(), part.end());
              begin = end;
            }
            return y;
          }};
}

OpUnderTest qk_norm_op(const ref::Attention& dims, float eps = 1e-5f) {
  return {{normal({dims.batch, dims.time, dims.width()}, "qkv")},
          {normal({dims.head_dim}, "q gamma", 0.5, 1), normal({dims.head_dim}, "k gamma", 0.5, 1)},
          [=](Context&, const Tensors& x, const Parameters& p) {
            return qk_norm(x[0], *p[0], *p[1], dims.heads, dims.kv_heads, {.eps = eps});
          },
          [=](const Arguments& a) { return ref::qk_norm(a[0], a[1], a[2], dims, static_cast<double>(eps)); }};
}

OpUnderTest lm_head_op(const Shape& shape, std::int64_t padded_classes, std::int64_t classes, std::int64_t chunk = 0) {
  const std::int64_t width = shape[-1], tokens = shape.numel() / width;
  const auto targets = random_ids(tokens, classes, 9);
  return {{normal(shape, "x")},
          {normal({padded_classes, width}, "weight", 0.7)},
          [=](Context& context, const Tensors& x, const Parameters& p) {
            return lm_head_loss(x[0], *p[0], Tensor::from_host(context, {tokens}, targets), classes, {.chunk = chunk});
          },
          [=](const Arguments& a) { return Values{ref::lm_head_loss(a[0], a[1], targets, classes)}; }};
}

}  // namespace

TEST_CASE("I8: the gradient of the embedding table agrees with central differences") {
  check_in_all_precisions(embedding_op({3, 5}, 7, 9, 0));
  check_in_all_precisions(embedding_op({2, 33}, 5, 17, 0));  // every row is used many times
  check_in_all_precisions(embedding_op({1, 1}, 4, 1, 0));    // most rows are not used: their gradient is zero
}

TEST_CASE("I8: the gradient of the positions agrees with central differences, beyond the sequence it is zero") {
  check_in_all_precisions(embedding_op({3, 5}, 7, 9, 5));
  check_in_all_precisions(embedding_op({2, 3}, 6, 19, 8));
}

TEST_CASE("I8: the gradients of layer norm agree with central differences") {
  check_in_all_precisions(layer_norm_op({3, 5, 7}, 0));
  check_in_all_precisions(layer_norm_op({2, 67}, 0.5));
  check_in_all_precisions(layer_norm_op({1, 1, 16}, -1));
  check_in_all_precisions(layer_norm_op({4, 9}, 0, 0.5f));
  check_gradients(layer_norm_op({37, 33}, 2), kF32);
}

TEST_CASE("I8: the gradients of RMS norm agree with central differences") {
  check_in_all_precisions(rms_norm_op({3, 5, 7}));
  check_in_all_precisions(rms_norm_op({2, 67}));
  check_in_all_precisions(rms_norm_op({4, 9}, 0.5f));
  check_gradients(rms_norm_op({37, 33}), kF32);
}

TEST_CASE("I8: the gradients of swiglu and geglu agree with central differences") {
  const std::int64_t width = GENERATE(2, 34, 82);
  const bool is_gelu = GENERATE(false, true);
  check_in_all_precisions(
      {{normal({3, 2, width}, "x", 2)},
       {},
       [=](Context&, const Tensors& x, const Parameters&) { return is_gelu ? geglu(x[0]) : swiglu(x[0]); },
       [=](const Arguments& a) { return is_gelu ? ref::geglu(a[0], width) : ref::swiglu(a[0], width); }});
}

TEST_CASE("I8: the gradient of rotary positions agrees with central differences") {
  check_in_all_precisions(rotary_op({2, 7, 3, 6}, {}));
  check_in_all_precisions(rotary_op({1, 5, 4, 10, 2}, {.base = 100}));
  check_in_all_precisions(rotary_op({3, 2, 2, 16, 1}, {.base = 500000, .scaling = {.factor = 8, .context = 32}}));
}

TEST_CASE("I8: the gradients of norms of queries and keys agree with central differences") {
  check_in_all_precisions(qk_norm_op({2, 7, 3, 6}));
  check_in_all_precisions(qk_norm_op({1, 5, 4, 10, 2}, 0.25f));
  check_in_all_precisions(qk_norm_op({3, 2, 2, 16, 1}));
}

TEST_CASE("I8: the gradient of attention in a window agrees with central differences") {
  check_in_all_precisions(attention_op({.batch = 2, .time = 9, .heads = 2, .head_dim = 6, .window = 3}));
  check_in_all_precisions(
      attention_op({.batch = 1, .time = 70, .heads = 2, .head_dim = 4, .kv_heads = 1, .window = 66}));
  check_in_all_precisions(attention_op({.batch = 1, .time = 6, .heads = 2, .head_dim = 4, .window = 1}));
}

TEST_CASE("I8: the gradients of attention with sinks agree with central differences") {
  check_in_all_precisions(sinks_op({.batch = 2, .time = 9, .heads = 3, .head_dim = 6}));
  check_in_all_precisions(sinks_op({.batch = 1, .time = 70, .heads = 4, .head_dim = 4, .kv_heads = 2, .window = 66}));
  check_in_all_precisions(sinks_op({.batch = 1, .time = 6, .heads = 2, .head_dim = 4, .window = 1}));
  check_in_all_precisions(sinks_op({.batch = 1, .time = 12, .heads = 2, .head_dim = 8, .window = 3}, {4, 1, 7}));
}

TEST_CASE("I8: the gradients of linear with bias agree with central differences") {
  check_in_all_precisions(linear_op({3, 5, 7}, 11, true));
  check_in_all_precisions(linear_op({1, 33}, 1, true));
  check_in_all_precisions(linear_op({2, 3, 1}, 5, true));
}

TEST_CASE("I8: the gradients of linear without bias agree with central differences") {
  check_in_all_precisions(linear_op({4, 9}, 6, false));
  check_gradients(linear_op({5, 13, 17}, 19, false), kF32);
}

TEST_CASE("I8: the gradient of gelu agrees with central differences, by tanh and by erf") {
  const GeluKind kind = GENERATE(GeluKind::tanh, GeluKind::erf);
  check_in_all_precisions({{normal({3, 41}, "x", 2)},
                           {},
                           [kind](Context&, const Tensors& x, const Parameters&) { return gelu(x[0], kind); },
                           [kind](const Arguments& a) { return ref::gelu(a[0], kind); }});
}

TEST_CASE("I8: the gradients of a sum agree with central differences") {
  check_in_all_precisions({{normal({3, 5, 7}, "a"), normal({3, 5, 7}, "b")},
                           {},
                           [](Context&, const Tensors& x, const Parameters&) { return add(x[0], x[1]); },
                           [](const Arguments& a) { return ref::add(a[0], a[1]); }});
}

TEST_CASE("I8: the gradient of a tensor added to itself agrees with central differences") {
  check_in_all_precisions({{normal({5, 7}, "a")},
                           {},
                           [](Context&, const Tensors& x, const Parameters&) { return add(x[0], x[0]); },
                           [](const Arguments& a) { return ref::add(a[0], a[0]); }});
}

TEST_CASE("I8: the gradient flows through a reshape unchanged") {
  check_in_all_precisions({{normal({3, 10}, "x")},
                           {},
                           [](Context&, const Tensors& x, const Parameters&) {
                             return gelu(x[0].reshape({2, 5, 3}), GeluKind::erf);
                           },
                           [](const Arguments& a) { return ref::gelu(a[0], GeluKind::erf); }});
}

TEST_CASE("I8: the gradient of a cast agrees with central differences, to the precision of the narrower dtype") {
  const auto check = [](DType dtype, const Precisions& precisions) {
    check_gradients({{normal({3, 41}, "x")},
                     {},
                     [=](Context&, const Tensors& x, const Parameters&) {
                       return cast(gelu(cast(x[0], dtype), GeluKind::erf), x[0].dtype());
                     },
                     [](const Arguments& a) { return ref::gelu(a[0], GeluKind::erf); }},
                    precisions);
  };
  check(DType::f32, kF32);  // no op at all
  check(DType::f32, kBf16);
  check(DType::bf16, {"f32 through bf16", DType::f32, DType::f32, kBf16.tolerance});
}

TEST_CASE("I8: the gradient of causal attention agrees with central differences") {
  check_in_all_precisions(attention_op({2, 7, 3, 5}));
  check_in_all_precisions(attention_op({1, 1, 2, 3}));
  check_in_all_precisions(attention_op({3, 2, 1, 16}));
  check_in_all_precisions(attention_op({2, 7, 6, 4, 2}));
  check_in_all_precisions(attention_op({1, 9, 3, 5, 1}));
}

TEST_CASE("I8: the gradient of causal attention over several blocks agrees with central differences") {
  const std::int64_t time = GENERATE(63, 65, 131);
  OpUnderTest op = attention_op({1, time, 2, 3, GENERATE(2, 1)});
  op.inputs[0] = sparse(op.inputs[0], 13);
  check_gradients(op, kF32);
  check_gradients(op, kBf16);
}

TEST_CASE("I8: the gradients of the head's loss agree with central differences, padded classes included") {
  check_in_all_precisions(lm_head_op({2, 5, 7}, 16, 11));
  check_in_all_precisions(lm_head_op({3, 9}, 5, 5));
  check_in_all_precisions(lm_head_op({1, 4}, 8, 1));
}

TEST_CASE("I8: the gradients of the head's loss agree with central differences over several chunks of tokens") {
  check_in_all_precisions(lm_head_op({65, 3}, 16, 11, 32));  // chunks of 32, 32 and 1 tokens
}

TEST_CASE("padded classes of the head get a gradient of exactly zero") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  Parameter weight("weight", {16, 3}, {}, true);
  PlainOwner owner(context);
  owner.add(weight, to_floats(normal({16, 3}, "weight", 30).values));
  const Tensor x = Tensor::from_host(context, {4, 3}, to_floats(normal({4, 3}, "x").values));
  backward(lm_head_loss(x, weight, Tensor::from_host(context, {4}, std::vector<std::int32_t>{0, 4, 10, 2}), 11));
  const auto grad = owner.grad(weight).to_host();
  for (std::size_t i = 11 * 3; i < 16 * 3; ++i) CHECK(grad[i] == 0.0f);
}

TEST_CASE("the head's chunks are even, in multiples of 32 tokens, and keep their logits within 128 MiB") {
  CHECK(lm_head_chunk_rows(10, 256) == 10);
  CHECK(lm_head_chunk_rows(300'000, 256) == 100'000);
  CHECK(lm_head_chunk_rows(1024, 50'304) == 512);
  CHECK(lm_head_chunk_rows(4096, 50'304) == 608);
  CHECK(lm_head_chunk_rows(16'384, 50'304, DeviceKind::cuda) == 4096);
  CHECK(lm_head_chunk_rows(4096, 10'000'000) == 32);
}

TEST_CASE("the logits for sampling are x weight^T, and record nothing") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  Parameter weight("weight", {8, 5}, {}, true);
  PlainOwner owner(context);
  const Argument w = normal({8, 5}, "weight"), x = normal({1, 3, 5}, "x");
  owner.add(weight, to_floats(w.values));
  Tensor input = Tensor::from_host(context, x.shape, to_floats(x.values));
  input.set_requires_grad();
  const Tensor logits = lm_head_logits(input, weight);
  CHECK(logits.shape() == Shape{3, 8});
  CHECK_FALSE(logits.requires_grad());
  CHECK(weight.pending_uses() == 0);
  check_close("logits", logits.to_host(), ref::linear(x.values, w.values, nullptr, 5), 1e-5);
}

TEST_CASE("the gradient of rows agrees with central differences, overlapping and used beside the whole") {
  const OpUnderTest op{{normal({5, 2, 3}, "x")},
                       {},
                       [](Context&, const Tensors& x, const Parameters&) {
                         const Tensor top = x[0].rows(0, 3), bottom = x[0].rows(2, 3);
                         const Tensor both = add(gelu(top, GeluKind::erf), bottom);
                         return add(add(both, both.rows(0, 3)), x[0].rows(1, 4).rows(1, 3));
                       },
                       [](const Arguments& a) {
                         const std::vector<double> top(a[0].begin(), a[0].begin() + 18),
                             bottom(a[0].begin() + 12, a[0].end());
                         Values y = ref::gelu(top, GeluKind::erf);
                         for (std::size_t i = 0; i < y.size(); ++i) y[i] = 2 * (y[i] + bottom[i]) + a[0][12 + i];
                         return y;
                       }};
  check_in_all_precisions(op);
}

}  // namespace zs::test::ops_gradient_test
