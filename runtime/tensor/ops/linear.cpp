#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/declare_gradient.h"
#include "runtime/tensor/gelu_node.h"
#include "runtime/tensor/launch_matmul.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

void bias_gradient(const Tensor& dy, Parameter& bias) {
  Context& context = dy.context();
  const auto target = bias.accumulation_target();
  const Buffer in = dy.buffer();
  const std::int64_t width = target.buffer.elems,
                     scratch = context.kernels().scratch.bias_backward(in.elems / width, width);
  context.launch(declare_gradient({"bias_backward", {in}, {}, scratch}, target),
                 [&kernels = context.kernels(), in, target](ExecContext& exec) {
                   kernels.bias_backward(exec, target.buffer, in, target.beta);
                 });
}

/// Inputs that a linear keeps for its backward.
struct ProductInputs {
  Tensor x, gelu_input;  // gelu_input: of x, which is what GELU gave, and whose gradient is passed on; or empty
};

/// The gradient of what GELU took.
Tensor gradient_past_gelu(const Tensor& dy, const Tensor& gelu_input, const Buffer& weight, const MatmulDims& dims) {
  Context& context = dy.context();
  Tensor dx = Tensor::empty(context, gelu_input.shape(), gelu_input.dtype());
  const MatmulBuffers product{dx.buffer(), dy.buffer(), weight, {}};
  const Buffer in = gelu_input.buffer();
  context.launch({"linear_dx_gelu", {product.a, product.b, in}, {product.c}, context.kernels().scratch.matmul(dims)},
                 [&kernels = context.kernels(), in, product, dims](ExecContext& exec) {
                   kernels.matmul_gelu_backward(exec, in, product, dims);
                 });
  return dx;
}

Tensor linear_gradients(const Tensor& dy, const ProductInputs& saved, bool wants_dx, Parameter& weight,
                        Parameter* bias) {
  Context& context = dy.context();
  const Tensor& x = saved.x;
  const std::int64_t outputs = weight.shape()[0], inputs = weight.shape()[1], rows = x.numel() / inputs;
  if (weight.is_trainable()) {
    const auto dweight = weight.accumulation_target();
    launch_matmul(context, "linear_dweight", {dweight.buffer, dy.buffer(), x.buffer(), {}},
                  {.m = outputs, .n = inputs, .k = rows, .transpose_a = true, .beta = dweight.beta});
  }
  if (bias && bias->is_trainable()) bias_gradient(dy, *bias);
  if (!wants_dx) return {};
  const MatmulDims dims{.m = rows, .n = inputs, .k = outputs};
  if (saved.gelu_input) return gradient_past_gelu(dy, saved.gelu_input, weight.value(), dims);
  Tensor dx = Tensor::empty(context, x.shape(), x.dtype());
  launch_matmul(context, "linear_dx", {dx.buffer(), dy.buffer(), weight.value(), {}}, dims);
  return dx;
}

/// The output, not computed yet.
Tensor output_of(const Tensor& x, const Parameter& weight, const Parameter* bias) {
  require_width("linear", x, weight, weight.shape()[1]);
  require_dtype_of("linear", x, weight);
  if (bias != nullptr) {
    require_alike("linear", weight, *bias);
    if (bias->numel() != weight.shape()[0])
      throw UsageError(fmt::format("op linear: parameter {} {} beside parameter {} {}", bias->name(),
                                   bias->shape().str(), weight.name(), weight.shape().str()),
                       "a bias has an element for each row of the weight");
  }
  std::vector<std::int64_t> dims(x.shape().dims().begin(), x.shape().dims().end());
  dims.back() = weight.shape()[0];
  return Tensor::empty(x.context(), Shape(std::span<const std::int64_t>(dims)), x.dtype());
}

MatmulBuffers buffers_of(const Tensor& y, const Tensor& x, const Parameter& weight, const Parameter* bias) {
  return {y.buffer(), x.buffer(), weight.value(), bias ? bias->value() : Buffer{}};
}

MatmulDims dims_of(const Tensor& x, const Parameter& weight) {
  const std::int64_t outputs = weight.shape()[0], inputs = weight.shape()[1];
  return {.m = x.numel() / inputs, .n = outputs, .k = inputs, .transpose_b = true};
}

void record_linear(Tensor& y, const Tensor& x, Parameter& weight, Parameter* bias) {
  const Tensor gelu_input = gelu_input_of(x);
  const ProductInputs saved{x.detach(), gelu_input.detach()};
  record_op(y, "linear", {gelu_input ? gelu_input : x}, {&weight, bias},
            [saved, wants_dx = x.requires_grad(), &weight, bias](const Tensor& dy) {
              return std::vector<Tensor>{linear_gradients(dy, saved, wants_dx, weight, bias)};
            });
}

}  // namespace

void launch_matmul(Context& context, const char* name, const MatmulBuffers& buffers, const MatmulDims& dims) {
  OpInfo info{name, {buffers.a, buffers.b}, {buffers.c}, context.kernels().scratch.matmul(dims)};
  if (!buffers.bias.empty()) info.reads.push_back(buffers.bias);
  if (dims.beta != 0) info.reads.push_back(buffers.c);
  context.launch(std::move(info), [&kernels = context.kernels(), buffers, dims](ExecContext& exec) {
    kernels.matmul(exec, buffers.c, buffers.a, buffers.b, buffers.bias, dims);
  });
}

Tensor linear(const Tensor& x, Parameter& weight, Parameter* bias) {
  Tensor y = output_of(x, weight, bias);
  launch_matmul(x.context(), "linear", buffers_of(y, x, weight, bias), dims_of(x, weight));
  record_linear(y, x, weight, bias);
  return y;
}

Tensor linear_rows(const Tensor& x, Parameter& weight, std::int64_t first, std::int64_t rows) {
  require_width("linear_rows", x, weight, weight.shape()[1]);
  require_dtype_of("linear_rows", x, weight);
  if (weight.is_trainable() || first < 0 || rows < 1 || first + rows > weight.shape()[0])
    throw UsageError(fmt::format("op linear_rows: rows {} to {} of the {} parameter {} {}", first, first + rows,
                                 weight.is_trainable() ? "trained" : "frozen", weight.name(), weight.shape().str()),
                     "ask for rows that a frozen weight has");
  Context& context = x.context();
  const std::int64_t inputs = weight.shape()[1], tokens = x.numel() / inputs;
  const auto own = [&weight, first, rows, inputs] { return weight.value().slice(first * inputs, rows * inputs); };
  std::vector<std::int64_t> dims(x.shape().dims().begin(), x.shape().dims().end());
  dims.back() = rows;
  Tensor y = Tensor::empty(context, Shape(std::span<const std::int64_t>(dims)), x.dtype());
  launch_matmul(context, "linear_rows", {y.buffer(), x.buffer(), own(), {}},
                {.m = tokens, .n = rows, .k = inputs, .transpose_b = true});
  record_op(y, "linear_rows", {x}, {&weight}, [=, shape = x.shape(), dtype = x.dtype()](const Tensor& dy) {
    Tensor dx = Tensor::empty(dy.context(), shape, dtype);
    launch_matmul(dy.context(), "linear_rows_dx", {dx.buffer(), dy.buffer(), own(), {}},
                  {.m = tokens, .n = inputs, .k = rows});
    return std::vector<Tensor>{dx};
  });
  return y;
}

Tensor linear_gelu(const Tensor& x, Parameter& weight, Parameter* bias, GeluKind kind) {
  Context& context = x.context();
  if (kind != GeluKind::tanh || context.kernels().matmul_gelu == nullptr) return gelu(linear(x, weight, bias), kind);
  Tensor sums = output_of(x, weight, bias), y = Tensor::empty(context, sums.shape(), sums.dtype());
  const MatmulBuffers product = buffers_of(sums, x, weight, bias);
  const MatmulDims dims = dims_of(x, weight);
  const Buffer out = y.buffer();
  OpInfo info{"linear_gelu", {product.a, product.b}, {product.c, out}, context.kernels().scratch.matmul(dims)};
  if (bias) info.reads.push_back(product.bias);
  context.launch(std::move(info), [&kernels = context.kernels(), out, product, dims](ExecContext& exec) {
    kernels.matmul_gelu(exec, out, product, dims);
  });
  record_linear(sums, x, weight, bias);
  record_gelu(y, sums, kind);
  return y;
}

}  // namespace zs
