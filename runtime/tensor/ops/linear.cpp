#include "runtime/tensor/autograd.h"
#include "runtime/tensor/declare_gradient.h"
#include "runtime/tensor/launch_matmul.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

void bias_gradient(const Tensor& dy, Parameter& bias) {
  Context& context = dy.context();
  const auto target = bias.grad_target();
  const Buffer in = dy.buffer();
  const std::int64_t width = target.buffer.elems, scratch = context.kernels().scratch.bias_backward(in.elems / width, width);
  context.launch(
      declare_gradient({"bias_backward", {in}, {}, scratch}, target),
      [&kernels = context.kernels(), in, target](ExecContext& exec) { kernels.bias_backward(exec, target.buffer, in, target.beta); });
}

Tensor linear_gradients(const Tensor& dy, const Tensor& x, bool wants_dx, Parameter& weight, Parameter* bias) {
  Context& context = dy.context();
  const std::int64_t outputs = weight.shape()[0], inputs = weight.shape()[1], rows = x.numel() / inputs;
  if (weight.is_trainable()) {
    const auto dweight = weight.grad_target();
    launch_matmul(context, "linear_dweight", {dweight.buffer, dy.buffer(), x.buffer(), {}},
                  {.m = outputs, .n = inputs, .k = rows, .transpose_a = true, .beta = dweight.beta});
  }
  if (bias && bias->is_trainable()) bias_gradient(dy, *bias);
  if (!wants_dx) return {};
  Tensor dx = Tensor::empty(context, x.shape(), x.dtype());
  launch_matmul(context, "linear_dx", {dx.buffer(), dy.buffer(), weight.value(), {}}, {.m = rows, .n = inputs, .k = outputs});
  return dx;
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
  Context& context = x.context();
  const std::int64_t outputs = weight.shape()[0], inputs = weight.shape()[1];
  ZS_CHECK(x.shape()[-1] == inputs, "linear {} {} meets {}", weight.name(), weight.shape().str(), x.shape().str());
  std::vector<std::int64_t> dims(x.shape().dims().begin(), x.shape().dims().end());
  dims.back() = outputs;
  Tensor y = Tensor::empty(context, Shape(std::span<const std::int64_t>(dims)), x.dtype());
  launch_matmul(context, "linear", {y.buffer(), x.buffer(), weight.value(), bias ? bias->value() : Buffer{}},
                {.m = x.numel() / inputs, .n = outputs, .k = inputs, .transpose_b = true});
  record_op(y, "linear", {x}, {&weight, bias}, [x = x.detach(), wants_dx = x.requires_grad(), &weight, bias](const Tensor& dy) {
    return std::vector<Tensor>{linear_gradients(dy, x, wants_dx, weight, bias)};
  });
  return y;
}

}  // namespace zs
