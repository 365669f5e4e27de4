#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

using Forward = decltype(KernelTable::swiglu_forward);
using Backward = decltype(KernelTable::swiglu_backward);

/// Gated activation: its op's names, and the kernels.
struct Gated {
  const char *name, *backward_name;
  Forward KernelTable::*forward;
  Backward KernelTable::*backward;
};

Tensor run(const Tensor& x, const Gated& op) {
  require_float(op.name, "x", x);
  Context& context = x.context();
  std::vector<std::int64_t> dims(x.shape().dims().begin(), x.shape().dims().end());
  if (dims.empty() || dims.back() % 2 != 0)
    throw UsageError(fmt::format("op {}: x is {}, whose rows have no halves", op.name, x.describe()),
                     "give rows of a gate and as many values");
  const std::int64_t width = dims.back() /= 2;
  Tensor y = Tensor::empty(context, Shape(std::span<const std::int64_t>(dims)), x.dtype());
  const Buffer out = y.buffer(), in = x.buffer();
  context.launch({op.name, {in}, {out}}, [kernel = context.kernels().*op.forward, out, in, width](ExecContext& exec) {
    kernel(exec, out, in, width);
  });
  record_op(y, op.name, {x}, {}, [x = x.detach(), width, op](const Tensor& dy) {
    Context& context = dy.context();
    Tensor dx = Tensor::empty(context, x.shape(), x.dtype());
    const Buffer out = dx.buffer(), grad = dy.buffer(), in = x.buffer();
    context.launch({op.backward_name, {grad, in}, {out}},
                   [kernel = context.kernels().*op.backward, out, grad, in, width](ExecContext& exec) {
                     kernel(exec, out, grad, in, width);
                   });
    return std::vector<Tensor>{dx};
  });
  return y;
}

}  // namespace

Tensor swiglu(const Tensor& x) {
  return run(x, {"swiglu", "swiglu_backward", &KernelTable::swiglu_forward, &KernelTable::swiglu_backward});
}

Tensor geglu(const Tensor& x) {
  return run(x, {"geglu", "geglu_backward", &KernelTable::geglu_forward, &KernelTable::geglu_backward});
}

}  // namespace zs
