#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/reduction.h"

namespace zs {
namespace {

Tensor dropped(const Tensor& x, const DropoutMask& mask) {
  Context& context = x.context();
  Tensor y = Tensor::empty(context, x.shape(), x.dtype());
  const Buffer out = y.buffer(), in = x.buffer();
  if (x.numel() > 0)
    context.launch({"dropout", {in}, {out}}, [&kernels = context.kernels(), out, in, mask](ExecContext& exec) {
      kernels.dropout(exec, out, in, mask);
    });
  return y;
}

}  // namespace

Tensor dropout(const Tensor& x, float probability, const RandomKey& key) {
  require_float("dropout", "x", x);
  if (!(probability >= 0 && probability < 1) || key.first_sample < 0)
    throw UsageError(fmt::format("op dropout: probability {}, first sample {}", probability, key.first_sample),
                     "a probability is at least 0 and below 1; samples are counted from 0");
  if (probability == 0) return x;
  const std::int64_t samples = x.shape().rank() > 0 ? x.shape()[0] : 1;
  const std::uint64_t step = mix64(key.seed ^ mix64(static_cast<std::uint64_t>(key.step)));
  const DropoutMask mask{mix64(step ^ mix64(~key.place)), key.first_sample * (samples > 0 ? x.numel() / samples : 0),
                         probability};
  Tensor y = dropped(x, mask);
  record_op(y, "dropout", {x}, {}, [mask](const Tensor& dy) { return std::vector<Tensor>{dropped(dy, mask)}; });
  return y;
}

}  // namespace zs
