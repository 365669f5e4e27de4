#include <array>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/declare_gradient.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

/// Columns of (rows, width).
struct Columns {
  std::int64_t first, count, width, rows;
};

/// Columns of the queries, the keys and the values in the rows of qkv.
struct Parts {
  Columns q, k, values;
};

/// One of the two norms: x (rows, columns), rstd (rows heads) are what backward needs of the forward.
struct HeadNorm {
  Parameter* weight;
  float offset;
  Tensor x, rstd;
};

void copy_columns(ExecContext& exec, const KernelTable& kernels, Buffer out, const Columns& to, Buffer in,
                  const Columns& from) {
  if (to.rows == 0) return;
  const auto part = [](Buffer x, const Columns& columns) {
    return x.slice(columns.first, (columns.rows - 1) * columns.width + columns.count);
  };
  kernels.copy_rows(exec, part(out, to), part(in, from), {to.rows, to.count, to.width, from.width});
}

Columns alone(const Columns& columns) { return {0, columns.count, columns.count, columns.rows}; }

/// Operands that a kernel is given of a norm.
struct Operands {
  Columns columns;
  Buffer x, rstd, weight;
  float offset;
  Parameter::GradTarget target;
};

Operands operands_of(const HeadNorm& norm, const Columns& columns) {
  return {columns, norm.x.buffer(), norm.rstd.buffer(), norm.weight->value(), norm.offset, {}};
}

/// y := both norms of qkv. normal: room for the norm of the queries, or of the keys.
void launch_forward(const Parts& parts, const HeadNorm (&norms)[2], const Tensor& y, const Tensor& qkv,
                    const Tensor& normal, float eps) {
  Context& context = qkv.context();
  const std::array both = {operands_of(norms[0], parts.q), operands_of(norms[1], parts.k)};
  const auto& [q, k] = both;
  const Buffer out = y.buffer(), in = qkv.buffer(), room = normal.buffer();
  context.launch({"qk_norm",
                  {in, q.weight, k.weight},
                  {out, q.x, q.rstd, k.x, k.rstd, room},
                  context.kernels().scratch.layer_norm_forward(q.weight.elems)},
                 [&kernels = context.kernels(), parts, both, out, in, room, eps](ExecContext& exec) {
                   copy_columns(exec, kernels, out, parts.values, in, parts.values);
                   for (const Operands& norm : both) {
                     const Buffer normalized = room.slice(0, norm.x.elems);
                     copy_columns(exec, kernels, norm.x, alone(norm.columns), in, norm.columns);
                     kernels.rms_norm_forward(exec, normalized, norm.rstd, norm.x, {norm.weight, norm.offset}, eps);
                     copy_columns(exec, kernels, out, norm.columns, normalized, alone(norm.columns));
                   }
                 });
}

/// dx from dy, and the weights' gradients. grads: room for those of the queries, or of the keys.
void launch_backward(const Parts& parts, const HeadNorm (&norms)[2], const Tensor& dx, const Tensor& dy,
                     const Tensor& grads) {
  Context& context = dy.context();
  const bool are_wanted = norms[0].weight->is_trainable() && norms[1].weight->is_trainable();
  const Tensor spare = are_wanted ? Tensor{} : Tensor::zeros(context, norms[0].weight->shape(), DType::f32);
  std::array both = {operands_of(norms[0], parts.q), operands_of(norms[1], parts.k)};
  for (std::size_t i = 0; i < both.size(); ++i) {
    Parameter& weight = *norms[i].weight;
    both[i].target = weight.is_trainable() ? weight.accumulation_target() : Parameter::GradTarget{spare.buffer(), 0};
  }
  const auto& [q, k] = both;
  const Buffer out = dx.buffer(), in = dy.buffer(), room = grads.buffer();
  OpInfo info{"qk_norm_backward",
              {in, q.x, q.rstd, q.weight, k.x, k.rstd, k.weight},
              {out, room},
              context.kernels().scratch.layer_norm_backward(q.rstd.elems, q.weight.elems)};
  info = declare_gradient(declare_gradient(std::move(info), q.target), k.target);
  context.launch(std::move(info), [&kernels = context.kernels(), parts, both, out, in, room](ExecContext& exec) {
    copy_columns(exec, kernels, out, parts.values, in, parts.values);
    for (const Operands& norm : both) {
      const Buffer grad = room.slice(0, norm.x.elems);
      copy_columns(exec, kernels, grad, alone(norm.columns), in, norm.columns);
      kernels.rms_norm_backward(exec, grad, norm.target.buffer, grad, norm.x, norm.rstd, {norm.weight, norm.offset},
                                norm.target.beta);
      copy_columns(exec, kernels, out, norm.columns, grad, alone(norm.columns));
    }
  });
}

HeadNorm head_norm(const Tensor& qkv, Parameter& weight, float offset, std::int64_t rows, const Columns& columns) {
  return {&weight, offset, Tensor::empty(qkv.context(), {rows, columns.count}, qkv.dtype()),
          Tensor::empty(qkv.context(), {rows * columns.count / weight.numel()}, DType::f32)};
}

}  // namespace

Tensor qk_norm(const Tensor& qkv, Parameter& q_weight, Parameter& k_weight, std::int64_t heads, std::int64_t kv_heads,
               const RmsOptions& options) {
  require_float("qk_norm", "qkv", qkv);
  const std::int64_t keys = kv_heads > 0 ? kv_heads : heads, head_dim = q_weight.numel(),
                     width = (heads + 2 * keys) * head_dim;
  if (heads <= 0 || heads % keys != 0 || qkv.shape().rank() != 3 || qkv.shape()[-1] != width ||
      k_weight.numel() != head_dim)
    throw UsageError(
        fmt::format(
            "op qk_norm: qkv is {}, for {} query heads and {} key and value heads, with weights of {} and {} elements",
            qkv.describe(), heads, keys, head_dim, k_weight.numel()),
        "expected (B, T, (heads + 2 kv_heads) head_dim), with heads a multiple of kv_heads, and weights of head_dim");
  Context& context = qkv.context();
  const std::int64_t rows = qkv.numel() / width;
  const Parts parts{{0, heads * head_dim, width, rows},
                    {heads * head_dim, keys * head_dim, width, rows},
                    {(heads + keys) * head_dim, keys * head_dim, width, rows}};
  const Shape of_queries{rows, parts.q.count};
  Tensor y = Tensor::empty(context, qkv.shape(), qkv.dtype());
  HeadNorm q = head_norm(qkv, q_weight, options.offset, rows, parts.q),
           k = head_norm(qkv, k_weight, options.offset, rows, parts.k);
  launch_forward(parts, {q, k}, y, qkv, Tensor::empty(context, of_queries, qkv.dtype()), options.eps);
  record_op(y, "qk_norm", {qkv}, {&q_weight, &k_weight},
            [parts, q = std::move(q), k = std::move(k), of_queries](const Tensor& dy) {
              Tensor dx = Tensor::empty(dy.context(), dy.shape(), dy.dtype());
              launch_backward(parts, {q, k}, dx, dy, Tensor::empty(dy.context(), of_queries, dy.dtype()));
              return std::vector<Tensor>{dx};
            });
  return y;
}

}  // namespace zs
