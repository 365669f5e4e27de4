#include "runtime/tensor/gelu_node.h"

#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

Tensor gelu_gradient(const Tensor& dy, const Tensor& x, GeluKind kind) {
  Context& context = dy.context();
  Tensor dx = Tensor::empty(context, x.shape(), x.dtype());
  const Buffer out = dx.buffer(), grad = dy.buffer(), in = x.buffer();
  context.launch({"gelu_backward", {grad, in}, {out}},
                 [&kernels = context.kernels(), out, grad, in, kind](ExecContext& exec) {
                   kernels.gelu_backward(exec, out, grad, in, kind);
                 });
  return dx;
}

}  // namespace

void record_gelu(Tensor& y, const Tensor& x, GeluKind kind) {
  record_op(y, "gelu", {x}, {},
            [x = x.detach(), kind](const Tensor& dy) { return std::vector<Tensor>{gelu_gradient(dy, x, kind)}; });
  if (y.requires_grad() && kind == GeluKind::tanh) y.autograd()->producer->gelu_input = x.detach();
}

Tensor gelu_input_of(const Tensor& y) {
  if (y.context().kernels().matmul_gelu_backward == nullptr || !y.requires_grad() || !y.autograd()->producer) return {};
  const Node& node = *y.autograd()->producer;
  Tensor x = node.gelu_input;
  if (x) x.set_autograd(node.inputs.front());
  return x;
}

Tensor gelu(const Tensor& x, GeluKind kind) {
  require_float("gelu", "x", x);
  Context& context = x.context();
  Tensor y = Tensor::empty(context, x.shape(), x.dtype());
  const Buffer out = y.buffer(), in = x.buffer();
  context.launch({"gelu", {in}, {out}}, [&kernels = context.kernels(), out, in, kind](ExecContext& exec) {
    kernels.gelu_forward(exec, out, in, kind);
  });
  record_gelu(y, x, kind);
  return y;
}

}  // namespace zs
