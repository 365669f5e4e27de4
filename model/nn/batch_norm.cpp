#include "model/nn/batch_norm.h"

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/reduction.h"

namespace zs {
namespace {

std::vector<int> all_but_channels(const Tensor& x) {
  std::vector<int> dims;
  for (int dim = 0; dim < x.shape().rank(); ++dim)
    if (dim != 1) dims.push_back(dim);
  return dims;
}

/// (C) -> (1, C, 1, ...), to be broadcast over x.
Tensor beside(const Tensor& x, const Tensor& channels) {
  std::vector<std::int64_t> dims(static_cast<std::size_t>(x.shape().rank()), 1);
  dims[1] = x.shape()[1];
  return channels.reshape(Shape(std::span<const std::int64_t>(dims)));
}

Tensor scaled(const Tensor& normalized, Parameter& weight, Parameter& bias, DType dtype) {
  Context& context = normalized.context();
  const auto of = [&](Parameter& parameter) {
    return beside(normalized, cast(as_tensor(context, parameter), DType::f32));
  };
  return cast(normalized * of(weight) + of(bias), dtype);
}

}  // namespace

NormalizedBatch batch_norm(const Tensor& x, Parameter& weight, Parameter& bias, float eps) {
  const std::int64_t channels = weight.numel();
  const std::vector<int> dims = all_but_channels(x);
  const Tensor in = cast(x, DType::f32);
  const Tensor mean = zs::mean(in, dims, true), centred = in - mean, variance = zs::mean(centred * centred, dims, true);
  return {scaled(centred * rsqrt(variance + eps), weight, bias, x.dtype()), mean.detach().reshape({channels}),
          variance.detach().reshape({channels})};
}

BatchNorm::BatchNorm(std::string path, std::int64_t channels, const BatchNormOptions& options)
    : Layer(std::move(path)),
      options_(options),
      weight_(add_parameter("weight", {channels}, {.constant = 1}, false)),
      bias_(add_parameter("bias", {channels}, {}, false)),
      running_mean_(add_buffer("running_mean", {channels}, 0)),
      running_var_(add_buffer("running_var", {channels}, 1)) {
  if (!(options.momentum >= 0 && options.momentum <= 1) || !(options.eps >= 0))
    throw UsageError(fmt::format("batch norm \"{}\" with a momentum of {} and an eps of {}", this->path(),
                                 options.momentum, options.eps),
                     "the momentum is from 0 to 1, and eps not below 0");
}

Tensor BatchNorm::forward(const Tensor& x) {
  const std::int64_t channels = weight_.numel();
  if (!x || x.shape().rank() < 2 || x.shape()[1] != channels)
    throw UsageError(fmt::format("batch norm \"{}\" of {}", path(), x ? x.describe() : "an empty tensor"),
                     fmt::format("give (batch, {}, ...)", channels));
  if (owner() == nullptr)
    throw UsageError(fmt::format("batch norm \"{}\" is called outside of a sharded model", path()),
                     "register it by add_child() or make_child() before fully_shard()");
  if (!owner()->is_training()) {
    Context& context = x.context();
    const Tensor in = cast(x, DType::f32);
    const Tensor deviation = rsqrt(as_tensor(context, running_var_) + options_.eps);
    const Tensor centred = in - beside(in, as_tensor(context, running_mean_));
    return scaled(centred * beside(in, deviation), weight_, bias_, x.dtype());
  }
  const std::int64_t count = x.numel() / channels;
  if (count < 2)
    throw UsageError(
        fmt::format("batch norm \"{}\" of {} in training: {} element a channel", path(), x.describe(), count),
        "give micro-batches of more samples, or evaluate");
  const NormalizedBatch batch = batch_norm(x, weight_, bias_, options_.eps);
  if (!x.context().mode().runs_again) update(batch.mean, batch.variance, count);
  return batch.y;
}

void BatchNorm::update(const Tensor& mean, const Tensor& variance, std::int64_t count) {
  Context& context = mean.context();
  const NoGradGuard no_grad(context);
  const std::int64_t channels = weight_.numel();
  const float unbiased = static_cast<float>(count) / static_cast<float>(count - 1);
  const Tensor both = mean_over_ranks(concat({mean, variance * unbiased}, 0));
  Parameter* const running[] = {&running_mean_, &running_var_};
  for (int i = 0; i < 2; ++i) {
    const Tensor next = as_tensor(context, *running[i]) * (1 - options_.momentum) +
                        slice(both, 0, i * channels, channels) * options_.momentum;
    const Buffer out = running[i]->value(), in = next.buffer();
    context.launch({"running_statistics", {in}, {out}},
                   [&kernels = context.kernels(), out, in](ExecContext& exec) { kernels.copy(exec, out, in); });
  }
}

}  // namespace zs
