#include "runtime/tensor/autograd.h"
#include "runtime/tensor/declare_gradient.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

struct Saved {
  Tensor x, mean, rstd;  // (..., C), (rows), (rows)
};

/// The kernel makes both gradients in one pass: where one is not wanted it goes into `spare`.
std::pair<Parameter::GradTarget, Parameter::GradTarget> targets(Parameter& gamma, Parameter& beta, const Tensor& spare) {
  if (!gamma.is_trainable() && !beta.is_trainable()) return {{spare.buffer(), 0}, {spare.buffer(), 0}};
  if (gamma.is_trainable() && beta.is_trainable()) return {gamma.grad_target(), beta.grad_target()};
  const auto wanted = (gamma.is_trainable() ? gamma : beta).grad_target();
  const Parameter::GradTarget other{spare.buffer(), wanted.beta};
  return gamma.is_trainable() ? std::pair(wanted, other) : std::pair(other, wanted);
}

Tensor layer_norm_gradients(const Tensor& dy, const Saved& saved, Parameter& gamma, Parameter& beta) {
  Context& context = dy.context();
  Tensor dx = Tensor::empty(context, saved.x.shape(), saved.x.dtype()), spare;
  if (!gamma.is_trainable() || !beta.is_trainable()) spare = Tensor::zeros(context, gamma.shape(), DType::f32);
  const auto [dgamma, dbeta] = targets(gamma, beta, spare);
  const Buffer out = dx.buffer(), in = dy.buffer(), x = saved.x.buffer(), mean = saved.mean.buffer(), rstd = saved.rstd.buffer(),
               scale = gamma.value();
  ZS_CHECK(dgamma.beta == dbeta.beta, "{} and {} were not touched alike", gamma.name(), beta.name());
  const std::int64_t scratch = context.kernels().scratch.layer_norm_backward(mean.elems, scale.elems);
  context.launch(declare_gradient(declare_gradient({"layer_norm_backward", {in, x, mean, rstd, scale}, {out}, scratch}, dgamma), dbeta),
                 [&kernels = context.kernels(), out, in, x, mean, rstd, scale, dgamma = dgamma, dbeta = dbeta](ExecContext& exec) {
                   kernels.layer_norm_backward(exec, out, dgamma.buffer, dbeta.buffer, in, x, mean, rstd, scale, dgamma.beta);
                 });
  return dx;
}

}  // namespace

Tensor layer_norm(const Tensor& x, Parameter& gamma, Parameter& beta, float eps) {
  Context& context = x.context();
  const std::int64_t width = gamma.numel();
  ZS_CHECK(x.shape()[-1] == width, "layer norm {} of width {} meets {}", gamma.name(), width, x.shape().str());
  Tensor y = Tensor::empty(context, x.shape(), x.dtype());
  Saved saved{x.detach(), Tensor::empty(context, {x.numel() / width}, DType::f32), Tensor::empty(context, {x.numel() / width}, DType::f32)};
  const Buffer out = y.buffer(), in = x.buffer(), mean = saved.mean.buffer(), rstd = saved.rstd.buffer(), scale = gamma.value(),
               shift = beta.value();
  context.launch({"layer_norm", {in, scale, shift}, {out, mean, rstd}, context.kernels().scratch.layer_norm_forward(width)},
                 [&kernels = context.kernels(), out, mean, rstd, in, scale, shift, eps](ExecContext& exec) {
                   kernels.layer_norm_forward(exec, out, mean, rstd, in, scale, shift, eps);
                 });
  record_op(y, "layer_norm", {x}, {&gamma, &beta}, [saved = std::move(saved), &gamma, &beta](const Tensor& dy) {
    return std::vector<Tensor>{layer_norm_gradients(dy, saved, gamma, beta)};
  });
  return y;
}

}  // namespace zs
