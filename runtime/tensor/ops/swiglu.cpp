#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {

Tensor swiglu(const Tensor& x) {
  require_float("swiglu", "x", x);
  Context& context = x.context();
  std::vector<std::int64_t> dims(x.shape().dims().begin(), x.shape().dims().end());
  if (dims.empty() || dims.back() % 2 != 0)
    throw UsageError(fmt::format("op swiglu: x is {}, whose rows have no halves", x.describe()),
                     "give rows of a gate and as many values");
  const std::int64_t width = dims.back() /= 2;
  Tensor y = Tensor::empty(context, Shape(std::span<const std::int64_t>(dims)), x.dtype());
  const Buffer out = y.buffer(), in = x.buffer();
  context.launch({"swiglu", {in}, {out}}, [&kernels = context.kernels(), out, in, width](ExecContext& exec) {
    kernels.swiglu_forward(exec, out, in, width);
  });
  record_op(y, "swiglu", {x}, {}, [x = x.detach(), width](const Tensor& dy) {
    Context& context = dy.context();
    Tensor dx = Tensor::empty(context, x.shape(), x.dtype());
    const Buffer out = dx.buffer(), grad = dy.buffer(), in = x.buffer();
    context.launch({"swiglu_backward", {grad, in}, {out}},
                   [&kernels = context.kernels(), out, grad, in, width](ExecContext& exec) {
                     kernels.swiglu_backward(exec, out, grad, in, width);
                   });
    return std::vector<Tensor>{dx};
  });
  return y;
}

}  // namespace zs
