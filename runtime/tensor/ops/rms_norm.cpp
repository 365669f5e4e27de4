#include "runtime/tensor/autograd.h"
#include "runtime/tensor/declare_gradient.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

struct Saved {
  Tensor x, rstd;  // (..., C), (rows)
};

/// The kernel makes gamma's gradient in any case: where it is not wanted it goes into `spare`.
Tensor rms_norm_gradients(const Tensor& dy, const Saved& saved, Parameter& gamma) {
  Context& context = dy.context();
  Tensor dx = Tensor::empty(context, saved.x.shape(), saved.x.dtype()), spare;
  if (!gamma.is_trainable()) spare = Tensor::zeros(context, gamma.shape(), DType::f32);
  const auto dgamma = gamma.is_trainable() ? gamma.grad_target() : Parameter::GradTarget{spare.buffer(), 0};
  const Buffer out = dx.buffer(), in = dy.buffer(), x = saved.x.buffer(), rstd = saved.rstd.buffer(), scale = gamma.value();
  const std::int64_t scratch = context.kernels().scratch.layer_norm_backward(rstd.elems, scale.elems);
  context.launch(declare_gradient({"rms_norm_backward", {in, x, rstd, scale}, {out}, scratch}, dgamma),
                 [&kernels = context.kernels(), out, in, x, rstd, scale, dgamma](ExecContext& exec) {
                   kernels.rms_norm_backward(exec, out, dgamma.buffer, in, x, rstd, scale, dgamma.beta);
                 });
  return dx;
}

}  // namespace

Tensor rms_norm(const Tensor& x, Parameter& gamma, float eps) {
  Context& context = x.context();
  const std::int64_t width = gamma.numel();
  ZS_CHECK(x.shape()[-1] == width, "RMS norm {} of width {} meets {}", gamma.name(), width, x.shape().str());
  Tensor y = Tensor::empty(context, x.shape(), x.dtype());
  Saved saved{x.detach(), Tensor::empty(context, {x.numel() / width}, DType::f32)};
  const Buffer out = y.buffer(), in = x.buffer(), rstd = saved.rstd.buffer(), scale = gamma.value();
  context.launch({"rms_norm", {in, scale}, {out, rstd}, context.kernels().scratch.layer_norm_forward(width)},
                 [&kernels = context.kernels(), out, rstd, in, scale, eps](ExecContext& exec) {
                   kernels.rms_norm_forward(exec, out, rstd, in, scale, eps);
                 });
  record_op(y, "rms_norm", {x}, {&gamma},
            [saved = std::move(saved), &gamma](const Tensor& dy) { return std::vector<Tensor>{rms_norm_gradients(dy, saved, gamma)}; });
  return y;
}

}  // namespace zs
