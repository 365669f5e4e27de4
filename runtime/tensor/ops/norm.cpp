#include "runtime/tensor/autograd.h"
#include "runtime/tensor/declare_gradient.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

/// Layer norm, or, without beta, RMS norm.
struct Norm {
  Parameter* gamma;
  Parameter* beta;
  float eps;
  float offset = 0;  // RMS norm adds it to gamma

  bool is_layer() const { return beta != nullptr; }
};

struct Saved {
  Tensor x, mean, rstd;  // (..., C), (rows), (rows); RMS norm has no mean
};

Buffer buffer_or_none(const Tensor& tensor) { return tensor ? tensor.buffer() : Buffer{}; }

/// The kernel makes the gradients of all parameters in one pass: one that is not wanted goes into `spare`. RMS norm has
/// none of beta.
std::pair<Parameter::GradTarget, Parameter::GradTarget> targets(const Norm& norm, const Tensor& spare) {
  Parameter &gamma = *norm.gamma, &beta = norm.is_layer() ? *norm.beta : gamma;
  if (!gamma.is_trainable() && !beta.is_trainable()) return {{spare.buffer(), 0}, {buffer_or_none(spare), 0}};
  if (!norm.is_layer()) return {gamma.accumulation_target(), {}};
  if (gamma.is_trainable() && beta.is_trainable()) return {gamma.accumulation_target(), beta.accumulation_target()};
  const auto wanted = (gamma.is_trainable() ? gamma : beta).accumulation_target();
  const Parameter::GradTarget other{spare.buffer(), wanted.beta};
  return gamma.is_trainable() ? std::pair(wanted, other) : std::pair(other, wanted);
}

/// Gradient that goes back to x: `held`, which came to it past the norm, and the norm's own.
Tensor norm_gradients(const Tensor& dy, const Tensor& held, const Saved& saved, const Norm& norm) {
  ZS_CHECK(!held || held.shape() == saved.x.shape(), "gradients of shapes {} and {} meet", held.shape().str(),
           saved.x.shape().str());
  Context& context = dy.context();
  const bool is_layer = norm.is_layer(),
             is_wanted = norm.gamma->is_trainable() && (!is_layer || norm.beta->is_trainable());
  const Tensor spare = is_wanted ? Tensor{} : Tensor::zeros(context, norm.gamma->shape(), DType::f32);
  Tensor dx = held && held.is_sole_owner() ? held : Tensor::empty(context, saved.x.shape(), saved.x.dtype());
  const auto [dgamma, dbeta] = targets(norm, spare);
  ZS_CHECK(!is_layer || dgamma.beta == dbeta.beta, "{} and {} were not touched alike", norm.gamma->name(),
           norm.beta->name());
  const NormGradient in{dy.buffer(), buffer_or_none(held)};
  const Buffer out = dx.buffer(), x = saved.x.buffer(), mean = buffer_or_none(saved.mean), rstd = saved.rstd.buffer(),
               scale = norm.gamma->value();
  OpInfo info{is_layer ? "layer_norm_backward" : "rms_norm_backward",
              {in.dy, x, rstd, scale},
              {out},
              context.kernels().scratch.layer_norm_backward(rstd.elems, scale.elems)};
  if (held) info.reads.push_back(in.skip);
  info = declare_gradient(std::move(info), dgamma);
  if (is_layer) {
    info.reads.push_back(mean);
    info = declare_gradient(std::move(info), dbeta);
  }
  context.launch(std::move(info), [&kernels = context.kernels(), is_layer, out, in, x, mean, rstd, scale,
                                   dgamma = dgamma, dbeta = dbeta, offset = norm.offset](ExecContext& exec) {
    if (is_layer)
      return kernels.layer_norm_backward(exec, out, dgamma.buffer, dbeta.buffer, in, x, mean, rstd, scale, dgamma.beta);
    kernels.rms_norm_backward(exec, out, dgamma.buffer, in, x, rstd, {scale, offset}, dgamma.beta);
  });
  return dx;
}

/// Launches the norm of x, or, where there is a residual, of their sum.
void launch_norm(Context& context, const NormInput& in, const Saved& saved, const Buffer& out, const Norm& norm) {
  const bool is_layer = norm.is_layer(), is_adding = !in.residual.empty();
  const Buffer mean = buffer_or_none(saved.mean), rstd = saved.rstd.buffer(), scale = norm.gamma->value(),
               shift = is_layer ? norm.beta->value() : Buffer{};
  const char* const name =
      is_layer ? (is_adding ? "add_layer_norm" : "layer_norm") : (is_adding ? "add_rms_norm" : "rms_norm");
  OpInfo info{name, {in.x, scale}, {out, rstd}, context.kernels().scratch.layer_norm_forward(scale.elems)};
  if (is_layer) {
    info.reads.push_back(shift);
    info.writes.push_back(mean);
  }
  if (is_adding) {
    info.reads.push_back(in.residual);
    info.writes.push_back(in.sum);
  }
  context.launch(std::move(info), [&kernels = context.kernels(), is_layer, out, mean, rstd, in, scale, shift,
                                   eps = norm.eps, offset = norm.offset](ExecContext& exec) {
    if (is_layer) return kernels.layer_norm_forward(exec, out, mean, rstd, in, scale, shift, eps);
    kernels.rms_norm_forward(exec, out, rstd, in, {scale, offset}, eps);
  });
}

/// residual: empty for none; then `sum` is x. Recorded as the sum and the norm that it is.
SumAndNorm run(const Tensor& x, const Tensor& residual, const Norm& norm) {
  const char* const op = norm.is_layer() ? "layer_norm" : "rms_norm";
  const std::int64_t width = norm.gamma->numel();
  require_float(op, "x", x);
  require_width(op, x, *norm.gamma, width);
  if (norm.is_layer()) require_width(op, x, *norm.beta, norm.beta->numel());
  Context& context = x.context();
  Tensor sum = residual ? Tensor::empty(context, x.shape(), x.dtype()) : x,
         y = Tensor::empty(context, x.shape(), x.dtype());
  const Shape rows{x.numel() / width};
  Saved saved{sum.detach(), norm.is_layer() ? Tensor::empty(context, rows, DType::f32) : Tensor{},
              Tensor::empty(context, rows, DType::f32)};
  const NormInput in = residual ? NormInput(x.buffer(), residual.buffer(), sum.buffer()) : NormInput(x.buffer());
  launch_norm(context, in, saved, y.buffer(), norm);
  if (residual) record_op(sum, "add", {x, residual}, {}, [](const Tensor& dy) { return std::vector<Tensor>{dy, dy}; });
  record_adding_op(y, op, sum, {norm.gamma, norm.beta},
                   [saved = std::move(saved), norm](const Tensor& dy, const Tensor& held) {
                     return norm_gradients(dy, held, saved, norm);
                   });
  return {std::move(sum), std::move(y)};
}

SumAndNorm run_adding(const Tensor& x, const Tensor& residual, const Norm& norm) {
  require_alike(fmt::format("norm {} of the sum", norm.gamma->name()), x, residual);
  return run(x, residual, norm);
}

}  // namespace

Tensor layer_norm(const Tensor& x, Parameter& gamma, Parameter& beta, float eps) {
  return run(x, {}, {&gamma, &beta, eps}).y;
}

Tensor rms_norm(const Tensor& x, Parameter& gamma, float eps, float offset) {
  return run(x, {}, {&gamma, nullptr, eps, offset}).y;
}

SumAndNorm add_layer_norm(const Tensor& x, const Tensor& residual, Parameter& gamma, Parameter& beta, float eps) {
  return run_adding(x, residual, {&gamma, &beta, eps});
}

SumAndNorm add_rms_norm(const Tensor& x, const Tensor& residual, Parameter& gamma, float eps, float offset) {
  return run_adding(x, residual, {&gamma, nullptr, eps, offset});
}

}  // namespace zs
