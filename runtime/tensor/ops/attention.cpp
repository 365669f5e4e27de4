#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

AttentionDims dims_of(const char* op, const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  require_float(op, "qkv", qkv);
  const std::int64_t keys = kv_heads > 0 ? kv_heads : heads, all = heads + 2 * keys;
  if (heads <= 0 || heads % keys != 0 || qkv.shape().rank() != 3 || qkv.shape()[2] % all != 0)
    throw UsageError(
        fmt::format("op {}: qkv is {}, for {} query heads and {} key and value heads", op, qkv.describe(), heads, keys),
        "expected (B, T, (heads + 2 kv_heads) head_dim), with heads a multiple of kv_heads");
  return {qkv.shape()[0], qkv.shape()[1], heads, qkv.shape()[2] / all, kv_heads};
}

Tensor turned(const Tensor& qkv, const AttentionDims& dims, const RotaryOptions& options) {
  Context& context = qkv.context();
  Tensor y = Tensor::empty(context, qkv.shape(), qkv.dtype());
  const Buffer out = y.buffer(), in = qkv.buffer();
  context.launch({"rotary", {in}, {out}, context.kernels().scratch.rotary(context.threads(), dims)},
                 [&kernels = context.kernels(), out, in, dims, options](ExecContext& exec) {
                   kernels.rotary(exec, out, in, dims, options);
                 });
  return y;
}

}  // namespace

Tensor rotary(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads, const RotaryOptions& options) {
  const AttentionDims dims = dims_of("rotary", qkv, heads, kv_heads);
  if (dims.head_dim % 2 != 0)
    throw UsageError(fmt::format("op rotary: heads of {} elements have no halves to turn", dims.head_dim),
                     "expected an even head_dim");
  Tensor y = turned(qkv, dims, options);
  RotaryOptions back = options;
  back.is_inverse = !options.is_inverse;
  record_op(y, "rotary", {qkv}, {},
            [dims, back](const Tensor& dy) { return std::vector<Tensor>{turned(dy, dims, back)}; });
  return y;
}

Tensor causal_attention(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads, std::int64_t window) {
  AttentionDims dims = dims_of("attention", qkv, heads, kv_heads);
  if (window < 0)
    throw UsageError(fmt::format("op attention: a window of {} keys", window), "expected 0, for all, or more");
  dims.window = window;
  Context& context = qkv.context();
  Tensor y = Tensor::empty(context, {dims.batch, dims.time, heads * dims.head_dim}, qkv.dtype());
  Tensor lse = Tensor::empty(context, {dims.batch, heads, dims.time}, DType::f32);
  const Buffer out = y.buffer(), sums = lse.buffer(), in = qkv.buffer();
  const std::int64_t scratch = context.kernels().scratch.attention(context.threads(), dims);
  context.launch({"attention", {in}, {out, sums}, scratch},
                 [&kernels = context.kernels(), out, sums, in, dims](ExecContext& exec) {
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
