#include "runtime/tensor/autograd.h"
#include "runtime/tensor/ops.h"

namespace zs {

Tensor causal_attention(const Tensor& qkv, std::int64_t heads) {
  Context& context = qkv.context();
  ZS_CHECK(qkv.shape().rank() == 3 && qkv.shape()[2] % (3 * heads) == 0, "attention with {} heads meets qkv {}", heads, qkv.shape().str());
  const std::int64_t batch = qkv.shape()[0], time = qkv.shape()[1], width = qkv.shape()[2] / 3;
  const AttentionDims dims{batch, time, heads, width / heads};
  Tensor y = Tensor::empty(context, {batch, time, width}, qkv.dtype());
  Tensor lse = Tensor::empty(context, {batch, heads, time}, DType::f32);
  const Buffer out = y.buffer(), sums = lse.buffer(), in = qkv.buffer();
  const std::int64_t scratch = context.kernels().scratch.attention(context.threads(), dims);
  context.launch({"attention", {in}, {out, sums}, scratch}, [&kernels = context.kernels(), out, sums, in, dims](ExecContext& exec) {
    kernels.attention_forward(exec, out, sums, in, dims);
  });
  record_op(y, "attention", {qkv}, {}, [qkv = qkv.detach(), y = y.detach(), lse, dims, scratch](const Tensor& dy) {
    Context& context = dy.context();
    Tensor dqkv = Tensor::empty(context, qkv.shape(), qkv.dtype());
    const Buffer out = dqkv.buffer(), grad = dy.buffer(), result = y.buffer(), in = qkv.buffer(), sums = lse.buffer();
    context.launch({"attention_backward", {grad, result, in, sums}, {out}, scratch},
                   [&kernels = context.kernels(), out, grad, result, in, sums, dims](ExecContext& exec) {
                     kernels.attention_backward(exec, out, grad, result, in, sums, dims);
                   });
    return std::vector<Tensor>{dqkv};
  });
  return y;
}

}  // namespace zs
