#include <algorithm>
#include <utility>

#include "kernels/no_target.h"
#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/constant.h"
#include "runtime/tensor/launch_matmul.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/pointwise.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

struct LmHead {
  Tensor x;        // (N, C)
  Tensor targets;  // (N)
  Tensor lse;      // (N)
  Tensor weights;  // (N); empty: alike
  Parameter& weight;
  std::int64_t classes, chunk;
  ClassParts parts;
  Tensor has_target;  // (N), of parts: 1 where the target is a class of this rank's, else 0

  std::int64_t tokens() const { return x.shape()[0]; }
  std::int64_t width() const { return x.shape()[1]; }
  std::int64_t padded_classes() const { return weight.shape()[0]; }
};

/// (rows, V') logits of x rows [first, first + rows)
Tensor chunk_logits(const LmHead& head, std::int64_t first, std::int64_t rows, DType dtype = DType::f32) {
  Context& context = head.x.context();
  Tensor logits = Tensor::empty(context, {rows, head.padded_classes()}, dtype, "logits");
  launch_matmul(context, "lm_head", {logits.buffer(), head.x.rows(first, rows).buffer(), head.weight.value(), {}},
                {.m = rows, .n = head.padded_classes(), .k = head.width(), .transpose_b = true});
  return logits;
}

/// Share of a token in the mean; that of none is 0.
float share_of(std::int64_t tokens) { return 1.0f / static_cast<float>(std::max<std::int64_t>(tokens, 1)); }

template <class Body>
void for_each_chunk(const LmHead& head, const Body& body) {
  std::int64_t first = 0;
  do {  // once where there are no tokens: the weight's gradient is zeros then, not nothing
    body(first, std::min(head.chunk, head.tokens() - first));
    first += head.chunk;
  } while (first < head.tokens());
}

void weigh_losses(const LmHead& head, const Tensor& losses, std::int64_t first, std::int64_t rows) {
  if (!head.weights || rows == 0) return;
  const Tensor part = losses.rows(first, rows);
  map_into("weigh_losses", head.x.context(), view_of(part), MapOp::mul, {part, head.weights.rows(first, rows)});
}

void weigh_gradients(const LmHead& head, const Tensor& dlogits, std::int64_t first, std::int64_t rows) {
  if (!head.weights || rows == 0) return;
  map_into("weigh_gradients", head.x.context(), view_of(dlogits), MapOp::mul,
           {dlogits, head.weights.rows(first, rows).reshape({rows, 1})});
}

/// x := y, of f32.
void copy_into(Context& context, const Tensor& x, const Tensor& y) {
  map_into("copy_losses", context, view_of(x), MapOp::mul, {y, 1.0f});
}

/// Makes the losses and log-sum-exps of this rank's classes those of all.
void combine_losses(const LmHead& head, const Tensor& losses, const Tensor& lse, std::int64_t first) {
  if (!head.parts.combine || losses.numel() == 0) return;
  Context& context = head.x.context();
  const NoGradGuard guard(context);
  const Tensor largest = lse * 1.0f;
  head.parts.combine(largest, true);
  const Tensor sums = exp(lse - largest);
  head.parts.combine(sums, false);
  const Tensor all = log(sums) + largest;
  const Tensor own = where(head.has_target.rows(first, losses.numel()), losses + (all - lse), 0.0f);
  head.parts.combine(own, false);
  copy_into(context, losses, own);
  copy_into(context, lse, all);
}

/// Fills `losses` and `head.lse` for the chunk that begins at row `first`.
void chunk_losses(const LmHead& head, const Tensor& losses, const Tensor& logits, std::int64_t first) {
  Context& context = head.x.context();
  const std::int64_t rows = logits.shape()[0];
  const Buffer out = losses.rows(first, rows).buffer(), lse = head.lse.rows(first, rows).buffer(), in = logits.buffer(),
               targets = head.targets.rows(first, rows).buffer();
  context.launch({"cross_entropy", {in, targets}, {out, lse}},
                 [&kernels = context.kernels(), out, lse, in, targets, classes = head.classes](ExecContext& exec) {
                   kernels.cross_entropy_forward(exec, out, lse, in, targets, classes);
                 });
  combine_losses(head, losses.rows(first, rows), head.lse.rows(first, rows), first);
  weigh_losses(head, losses, first, rows);
}

Tensor mean_loss(const Tensor& losses) {
  Context& context = losses.context();
  Tensor loss = Tensor::empty(context, {}, DType::f32, "loss");
  const Buffer out = loss.buffer(), in = losses.buffer();
  context.launch({"mean_loss", {in}, {out}}, [&kernels = context.kernels(), out, in](ExecContext& exec) {
    kernels.sum(exec, out, in, share_of(in.elems));
  });
  return loss;
}

/// dlogits of the chunk that begins at row `first`, in x's dtype; in place where that is f32.
Tensor chunk_dlogits(const LmHead& head, const Tensor& dloss, const Tensor& logits, std::int64_t first) {
  Context& context = head.x.context();
  const std::int64_t rows = logits.shape()[0];
  const bool in_place = head.x.dtype() == DType::f32;
  Tensor dlogits = in_place ? logits : Tensor::empty(context, logits.shape(), head.x.dtype(), "logits");
  const Buffer out = dlogits.buffer(), in = logits.buffer(), lse = head.lse.rows(first, rows).buffer(),
               targets = head.targets.rows(first, rows).buffer(), seed = dloss.buffer();
  const float factor = share_of(head.tokens());
  context.launch(
      {"cross_entropy_backward", {in, lse, targets, seed}, {out}},
      [&kernels = context.kernels(), out, in, lse, targets, seed, factor, classes = head.classes](ExecContext& exec) {
        kernels.cross_entropy_backward(exec, out, in, lse, targets, seed, classes, factor);
      });
  weigh_gradients(head, dlogits, first, rows);
  return dlogits;
}

/// Fills `losses` for the chunk that begins at row `first`, and makes its logits dlogits: where the kernels do it in
/// one pass.
void chunk_losses_in_place(const LmHead& head, const Tensor& losses, const Tensor& dloss, const Tensor& logits,
                           std::int64_t first) {
  Context& context = head.x.context();
  const std::int64_t rows = logits.shape()[0];
  const Buffer out = losses.rows(first, rows).buffer(), both = logits.buffer(),
               targets = head.targets.rows(first, rows).buffer(), seed = dloss.buffer();
  const float factor = share_of(head.tokens());
  context.launch(
      {"cross_entropy_in_place", {both, targets, seed}, {out, both}},
      [&kernels = context.kernels(), out, both, targets, seed, factor, classes = head.classes](ExecContext& exec) {
        kernels.cross_entropy_in_place(exec, out, both, targets, seed, classes, factor);
      });
  weigh_losses(head, losses, first, rows);
  weigh_gradients(head, logits, first, rows);
}

/// True if `losses` and dlogits come from logits of x's dtype, in their place.
bool is_in_place(const Context& context, const ClassParts& parts) {
  return context.kernels().cross_entropy_in_place != nullptr && !parts.combine;
}

/// Adds the chunk's gradients from its dlogits: its rows of dx, and its part of the weight's gradient.
void chunk_gradients(const LmHead& head, const Tensor& dx, const Tensor& dlogits, std::int64_t first) {
  Context& context = head.x.context();
  const std::int64_t rows = dlogits.shape()[0];
  launch_matmul(context, "lm_head_dx", {dx.rows(first, rows).buffer(), dlogits.buffer(), head.weight.value(), {}},
                {.m = rows, .n = head.width(), .k = head.padded_classes()});
  if (!head.weight.is_trainable()) return;
  const auto dweight = head.weight.accumulation_target();
  launch_matmul(context, "lm_head_dweight", {dweight.buffer, dlogits.buffer(), head.x.rows(first, rows).buffer(), {}},
                {.m = head.padded_classes(), .n = head.width(), .k = rows, .transpose_a = true, .beta = dweight.beta});
}

/// dx of this rank's classes, made that of all.
Tensor combined(const LmHead& head, const Tensor& dx) {
  if (!head.parts.combine || dx.numel() == 0) return dx;
  const NoGradGuard guard(dx.context());
  const Tensor sum = cast(dx, DType::f32);
  head.parts.combine(sum, false);
  return cast(sum, dx.dtype());
}

Tensor forward(const LmHead& head) {
  const Tensor losses = Tensor::empty(head.x.context(), {head.tokens()}, DType::f32);
  for_each_chunk(head, [&](std::int64_t first, std::int64_t rows) {
    chunk_losses(head, losses, chunk_logits(head, first, rows), first);
  });
  return mean_loss(losses);
}

Tensor gradients(const LmHead& head, const Tensor& dloss) {
  Tensor dx = Tensor::empty(head.x.context(), head.x.shape(), head.x.dtype());
  for_each_chunk(head, [&](std::int64_t first, std::int64_t rows) {
    chunk_gradients(head, dx, chunk_dlogits(head, dloss, chunk_logits(head, first, rows), first), first);
  });
  return combined(head, dx);
}

/// Loss and dx with each chunk's logits computed once.
std::pair<Tensor, Tensor> forward_with_gradients(const LmHead& head, float seed) {
  Context& context = head.x.context();
  const Tensor losses = Tensor::empty(context, {head.tokens()}, DType::f32), dloss = constant(context, {}, seed);
  Tensor dx = Tensor::empty(context, head.x.shape(), head.x.dtype());
  head.weight.owner()->before_backward(head.weight);
  head.weight.add_early_gradient();
  for_each_chunk(head, [&](std::int64_t first, std::int64_t rows) {
    if (is_in_place(context, head.parts)) {
      const Tensor logits = chunk_logits(head, first, rows, head.x.dtype());
      chunk_losses_in_place(head, losses, dloss, logits, first);
      return chunk_gradients(head, dx, logits, first);
    }
    Tensor logits = chunk_logits(head, first, rows);
    chunk_losses(head, losses, logits, first);
    const Tensor dlogits = chunk_dlogits(head, dloss, logits, first);
    logits = {};
    chunk_gradients(head, dx, dlogits, first);
  });
  return {mean_loss(losses), combined(head, dx)};
}

void require_arguments(const char* op, const Tensor& x, const Parameter& weight) {
  require_width(op, x, weight, weight.shape()[1]);
  require_dtype_of(op, x, weight);
}

/// Sets head.weights, and gives tokens that do not count a target of their own.
void weigh(LmHead& head, const LossOptions& options) {
  head.weights = options.weights ? options.weights.detach().reshape({head.tokens()}) : Tensor{};
  if (!options.ignored || head.tokens() == 0) return;
  const NoGradGuard guard(head.x.context());
  const Tensor skipped = eq(head.targets, static_cast<float>(*options.ignored));
  head.targets = computed("targets", head.x.context(), head.targets.shape(), DType::i32, MapOp::where,
                          {skipped, 0.0f, head.targets});
  if (head.weights) {
    head.weights = where(skipped, 0.0f, head.weights);
    return;
  }
  head.weights = 1.0f - skipped;
  const Tensor counted = clamp(sum(head.weights), 1.0f, 3e38f);
  head.weights = head.weights * (static_cast<float>(head.tokens()) / counted);
}

/// Counts classes and targets from the first of this rank's.
void find_own_targets(LmHead& head) {
  if (!head.parts.combine) return;
  const NoGradGuard guard(head.x.context());
  require_below("lm_head_loss", "target", head.targets, head.classes);  // another would be no rank's, and count as 0
  head.classes = std::clamp<std::int64_t>(head.classes - head.parts.first, 0, head.padded_classes());
  const Tensor own = head.targets - static_cast<float>(head.parts.first);
  head.has_target = mul(ge(own, 0.0f), lt(own, static_cast<float>(head.classes)));
  head.targets = where(head.has_target, own, static_cast<float>(kNoTarget));
}

void require_weights(const Tensor& weights, std::int64_t tokens) {
  if (!weights || (weights.dtype() == DType::f32 && weights.numel() == tokens)) return;
  throw UsageError(fmt::format("op lm_head_loss: weights {} of {} tokens", weights.describe(), tokens),
                   "give each token one, f32");
}

}  // namespace

std::int64_t lm_head_chunk_rows(std::int64_t tokens, std::int64_t padded_classes, DeviceKind device) {
  constexpr std::int64_t kChunkBytes = 128 << 20, kGpuChunkBytes = 1 << 30, kMultiple = 32;
  const std::int64_t bytes = device == DeviceKind::cuda ? kGpuChunkBytes : kChunkBytes;
  const std::int64_t fitting =
      std::max(bytes / (padded_classes * size_of(DType::f32)) / kMultiple * kMultiple, kMultiple);
  if (tokens == 0) return 0;
  const std::int64_t chunks = (tokens + fitting - 1) / fitting;
  const std::int64_t share = (tokens + chunks - 1) / chunks;
  return std::min(tokens, (share + kMultiple - 1) / kMultiple * kMultiple);
}

Tensor lm_head_loss(const Tensor& x, Parameter& weight, const Tensor& targets, std::int64_t classes,
                    const LossOptions& options) {
  const std::int64_t width = weight.shape()[1];
  require_arguments("lm_head_loss", x, weight);
  require_ids("lm_head_loss", "targets", targets);
  Context& context = x.context();
  const std::int64_t tokens = x.numel() / width;
  if (targets.numel() != tokens)
    throw UsageError(fmt::format("op lm_head_loss: x is {}, with {} targets", x.describe(), targets.numel()),
                     "give each row one target");
  require_weights(options.weights, tokens);
  if (classes <= 0 || (classes > weight.shape()[0] && !options.parts.combine))
    throw UsageError(
        fmt::format("op lm_head_loss: {} classes of parameter {} {}", classes, weight.name(), weight.shape().str()));
  LmHead head{x.detach().reshape({tokens, width}),
              targets.detach().reshape({tokens}),
              Tensor::empty(context, {tokens}, DType::f32),
              {},
              weight,
              classes,
              options.chunk > 0
                  ? options.chunk
                  : lm_head_chunk_rows(tokens, weight.shape()[0],
                                       is_in_place(context, options.parts) ? DeviceKind::cuda : DeviceKind::cpu),
              options.parts,
              {}};
  weigh(head, options);
  find_own_targets(head);
  if (options.seed && context.is_grad_enabled()) {
    auto [loss, dx] = forward_with_gradients(head, *options.seed);
    record_op(loss, "lm_head_loss", {x}, {&weight},
              [dx = dx.reshape(x.shape())](const Tensor&) { return std::vector<Tensor>{dx}; });
    loss.autograd()->producer->seed = options.seed;
    return loss;
  }
  Tensor loss = forward(head);
  record_op(loss, "lm_head_loss", {x}, {&weight}, [head = std::move(head), shape = x.shape()](const Tensor& dloss) {
    return std::vector<Tensor>{gradients(head, dloss).reshape(shape)};
  });
  return loss;
}

Tensor lm_head_logits(const Tensor& x, Parameter& weight) {
  require_arguments("lm_head_logits", x, weight);
  const std::int64_t width = weight.shape()[1], tokens = x.numel() / width;
  Tensor logits = Tensor::empty(x.context(), {tokens, weight.shape()[0]}, DType::f32, "logits");
  launch_matmul(x.context(), "lm_head", {logits.buffer(), x.buffer(), weight.value(), {}},
                {.m = tokens, .n = weight.shape()[0], .k = width, .transpose_b = true});
  return logits;
}

}  // namespace zs
