#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/reduction.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

DimSet set_of(const char* op, const Tensor& x, int dim) {
  require_float(op, "x", x);
  return 1u << dim_of(op, x.shape(), dim);
}

/// x - the largest element of its line, in f32.
Tensor shifted(const Tensor& x, DimSet dims) {
  const Tensor largest = reduced("softmax_max", x, ReduceKind::max, dims, DType::f32);
  return computed("softmax_shift", x.context(), x.shape(), DType::f32, MapOp::sub, {x, largest});
}

}  // namespace

Tensor softmax(const Tensor& x, int dim) {
  const DimSet dims = set_of("softmax", x, dim);
  Context& context = x.context();
  Tensor y = Tensor::empty(context, x.shape(), x.dtype());
  if (x.numel() > 0) {
    const Tensor powers = shifted(x, dims);
    map_into("softmax_exp", context, view_of(powers), MapOp::exp, {powers});
    map_into("softmax", context, view_of(y), MapOp::div,
             {powers, reduced("softmax_sum", powers, ReduceKind::sum, dims, DType::f32)});
  }
  record_op(y, "softmax", {x}, {}, [y = y.detach(), dims](const Tensor& dy) {
    Context& context = dy.context();
    const Tensor products = computed("softmax_products", context, y.shape(), DType::f32, MapOp::mul, {dy, y});
    const Tensor sums = reduced("softmax_dsum", products, ReduceKind::sum, dims, DType::f32);
    map_into("softmax_dshift", context, view_of(products), MapOp::sub, {dy, sums});
    return std::vector<Tensor>{computed("softmax_backward", context, y.shape(), y.dtype(), MapOp::mul, {products, y})};
  });
  return y;
}

Tensor log_softmax(const Tensor& x, int dim) {
  const DimSet dims = set_of("log_softmax", x, dim);
  Context& context = x.context();
  Tensor y = Tensor::empty(context, x.shape(), x.dtype());
  if (x.numel() > 0) {
    const Tensor shift = shifted(x, dims);
    const Tensor powers = computed("softmax_exp", context, x.shape(), DType::f32, MapOp::exp, {shift});
    const Tensor sums = reduced("softmax_sum", powers, ReduceKind::sum, dims, DType::f32);
    map_into("softmax_log", context, view_of(sums), MapOp::log, {sums});
    map_into("log_softmax", context, view_of(y), MapOp::sub, {shift, sums});
  }
  record_op(y, "log_softmax", {x}, {}, [y = y.detach(), dims](const Tensor& dy) {
    Context& context = dy.context();
    const Tensor powers = computed("softmax_exp", context, y.shape(), DType::f32, MapOp::exp, {y});
    map_into("log_softmax_share", context, view_of(powers), MapOp::mul,
             {powers, reduced("softmax_dsum", dy, ReduceKind::sum, dims, DType::f32)});
    return std::vector<Tensor>{
        computed("log_softmax_backward", context, y.shape(), y.dtype(), MapOp::sub, {dy, powers})};
  });
  return y;
}

namespace {

/// Rows of logits, (rows, classes).
struct Rows {
  Tensor logits, targets, lse;  // f32; every target is one of the classes
  Tensor shares;                // (rows, 1) f32: of the loss, adding up to 1, or all 0; empty: alike
};

/// Sets rows.shares and gives rows that do not count a target of their own.
void weigh(Rows& rows, const CrossEntropyOptions& options) {
  Context& context = rows.logits.context();
  const Shape shape = rows.targets.shape();
  Tensor weights, skipped;
  if (options.ignored) {
    skipped = eq(rows.targets, static_cast<float>(*options.ignored));
    rows.targets = computed("targets", context, shape, DType::i32, MapOp::where, {skipped, 0.0f, rows.targets});
  }
  if (options.weights) {
    weights = Tensor::empty(context, shape, DType::f32);
    const LineDims dims{1, options.weights.numel(), shape.numel(), 1};
    const Buffer out = weights.buffer(), in = options.weights.buffer(), at = rows.targets.buffer();
    context.launch({"class_weights", {in, at}, {out}},
                   [&kernels = context.kernels(), out, in, at, dims](ExecContext& exec) {
                     kernels.take_lines(exec, out, in, at, dims);
                   });
  }
  if (skipped)
    weights = computed("row_weights", context, shape, DType::f32, MapOp::where,
                       {skipped, 0.0f, weights ? Operand(weights) : Operand(1.0f)});
  if (!weights) return;
  const Tensor total = reduced("total_weight", weights, ReduceKind::sum, 1u, DType::f32);
  map_into("total_weight", context, view_of(total), MapOp::clamp, {total, 1e-30f, 3e38f});
  rows.shares =
      computed("row_shares", context, shape, DType::f32, MapOp::div, {weights, total}).reshape({shape.numel(), 1});
}

Tensor loss_of(Rows& rows) {
  Context& context = rows.logits.context();
  const std::int64_t count = rows.targets.numel(), classes = rows.logits.shape()[1];
  if (count == 0) return Tensor::zeros(context, {}, DType::f32, "loss");
  const Tensor losses = Tensor::empty(context, {count}, DType::f32);
  const Buffer out = losses.buffer(), lse = rows.lse.buffer(), in = rows.logits.buffer(),
               targets = rows.targets.buffer();
  context.launch({"cross_entropy", {in, targets}, {out, lse}},
                 [&kernels = context.kernels(), out, lse, in, targets, classes](ExecContext& exec) {
                   kernels.cross_entropy_forward(exec, out, lse, in, targets, classes);
                 });
  if (rows.shares)
    map_into("weigh_losses", context, view_of(losses), MapOp::mul, {losses, rows.shares.reshape({count})});
  return reduced("sum", losses, ReduceKind::sum, 1u, DType::f32, rows.shares ? 1.0f : 1.0f / static_cast<float>(count))
      .reshape({});
}

Tensor loss_gradient(const Rows& rows, const Tensor& dloss, DType dtype) {
  Context& context = dloss.context();
  const std::int64_t count = rows.targets.numel(), classes = rows.logits.shape()[1];
  Tensor dlogits = Tensor::empty(context, rows.logits.shape(), dtype);
  if (count == 0) return dlogits;
  const Buffer out = dlogits.buffer(), in = rows.logits.buffer(), lse = rows.lse.buffer(),
               targets = rows.targets.buffer(), seed = dloss.buffer();
  const float factor = rows.shares ? 1.0f : 1.0f / static_cast<float>(count);
  context.launch({"cross_entropy_backward", {in, lse, targets, seed}, {out}},
                 [&kernels = context.kernels(), out, in, lse, targets, seed, factor, classes](ExecContext& exec) {
                   kernels.cross_entropy_backward(exec, out, in, lse, targets, seed, classes, factor);
                 });
  if (rows.shares) map_into("weigh_gradients", context, view_of(dlogits), MapOp::mul, {dlogits, rows.shares});
  return dlogits;
}

void require_rows(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  require_float("cross_entropy", "logits", logits);
  require_ids("cross_entropy", "targets", targets);
  if (logits.shape().rank() == 0 || targets.numel() * logits.shape()[-1] != logits.numel())
    throw UsageError(fmt::format("op cross_entropy: logits {}, with {} targets", logits.describe(), targets.numel()),
                     "give each row of the last dim one target");
  if (options.weights && (options.weights.dtype() != DType::f32 || options.weights.numel() != logits.shape()[-1]))
    throw UsageError(
        fmt::format("op cross_entropy: weights {} of {} classes", options.weights.describe(), logits.shape()[-1]),
        "give each class one, f32");
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  require_rows(logits, targets, options);
  Context& context = logits.context();
  const std::int64_t count = targets.numel(), classes = logits.shape()[-1];
  Rows rows{{}, targets.detach().reshape({count}), Tensor::empty(context, {count}, DType::f32), {}};
  {
    const NoGradGuard guard(context);
    rows.logits = cast(logits, DType::f32).detach().reshape({count, classes});
    weigh(rows, options);
  }
  Tensor loss = loss_of(rows);
  record_op(loss, "cross_entropy", {logits}, {},
            [rows = std::move(rows), shape = logits.shape(), dtype = logits.dtype()](const Tensor& dloss) {
              return std::vector<Tensor>{loss_gradient(rows, dloss, dtype).reshape(shape)};
            });
  return loss;
}

Tensor mse(const Tensor& a, const Tensor& b) {
  require_alike("op mse", a, b);
  const Tensor difference = sub(cast(a, DType::f32), cast(b, DType::f32));
  return mean(mul(difference, difference));
}

}  // namespace zs
