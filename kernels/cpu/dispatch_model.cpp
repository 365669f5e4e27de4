#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/dispatch.h"

/// Checks and unpacking for the layers of a model.
namespace zs::cpu {
namespace {

Rows rows_of(const Buffer& buffer, std::int64_t width) { return {checks::rows_of(buffer, width), width}; }

/// gradient := sums + beta * gradient; for beta 0 what it holds is not read.
void store_gradient(ExecContext& ctx, Buffer gradient, float* sums, float beta) {
  const Buffer in{sums, gradient.elems, DType::f32, gradient.device};
  if (beta == 0.0f) return cast(ctx, gradient, in);
  if (beta != 1.0f) scale(ctx, gradient, gradient, beta);
  accumulate(ctx, gradient, in);
}

Data data_or_none(const Buffer& buffer) { return buffer.empty() ? Data{} : data_of(buffer); }

constexpr std::int64_t kFloat = sizeof(float);

}  // namespace

std::int64_t bias_backward_scratch(std::int64_t rows, std::int64_t width) { return kFloat * (1 + row_blocks(rows).count) * width; }
std::int64_t layer_norm_forward_scratch(std::int64_t width) { return kFloat * 2 * width; }
std::int64_t layer_norm_backward_scratch(std::int64_t rows, std::int64_t width) {
  return kFloat * (3 + 2 * row_blocks(rows).count) * width;
}
std::int64_t attention_scratch(int threads, const AttentionDims& dims) {
  return kFloat * std::min<std::int64_t>(threads, dims.batch * dims.heads) * round_up(attention_scratch_elems(dims), 16);
}

std::int64_t rotary_scratch(int threads, const AttentionDims& dims) { return kFloat * threads * rotary_scratch_elems(dims); }

void bias_backward(ExecContext& ctx, Buffer dbias, Buffer dy, float beta) {
  const Rows rows = rows_of(dy, dbias.elems);
  checks::gradient("dbias", dbias, dy);
  float* sums = scratch(ctx, bias_backward_scratch(rows.count, rows.width));
  isa().column_sums(ctx.threads(), sums, sums + rows.width, data_of(dy), rows);
  store_gradient(ctx, dbias, sums, beta);
}

void embedding_forward(ExecContext& ctx, Buffer out, Buffer ids, Buffer table, Buffer positions, std::int64_t time) {
  if (ids.empty()) return;
  const checks::TableRows found = checks::embedding_forward(out, ids, table, positions, time);
  check_indices("token", ids.as<std::int32_t>(), ids.elems, found.table_rows);
  const Data no_positions{nullptr, table.dtype == DType::bf16};
  isa().embedding(ctx.threads(), {.out = data_of(out),
                                  .table = data_of(table),
                                  .positions = positions.empty() ? no_positions : data_of(positions),
                                  .ids = ids.as<std::int32_t>(),
                                  .rows = {found.tokens, found.width},
                                  .time = time});
}

void embedding_backward(ExecContext& ctx, Buffer dtable, Buffer ids, Buffer dy, std::int64_t width, float beta) {
  const checks::TableRows found = checks::embedding_backward(dtable, ids, dy, width);
  check_indices("token", ids.as<std::int32_t>(), ids.elems, found.table_rows);
  isa().scatter_rows(ctx.threads(), {.table = data_of(dtable),
                                     .dy = data_of(dy),
                                     .ids = ids.as<std::int32_t>(),
                                     .rows = {found.tokens, width},
                                     .table_rows = found.table_rows,
                                     .period = 0,
                                     .beta = beta});
}

void position_backward(ExecContext& ctx, Buffer dpositions, Buffer dy, std::int64_t time, std::int64_t width, float beta) {
  const checks::TableRows found = checks::position_backward(dpositions, dy, time, width);
  isa().scatter_rows(ctx.threads(), {.table = data_of(dpositions),
                                     .dy = data_of(dy),
                                     .ids = nullptr,
                                     .rows = {found.tokens, width},
                                     .table_rows = found.table_rows,
                                     .period = time,
                                     .beta = beta});
}

void layer_norm_forward(ExecContext& ctx, Buffer y, Buffer mean, Buffer rstd, NormInput x, Buffer gamma, Buffer beta, float eps) {
  const Rows rows{checks::layer_norm_forward(y, mean, rstd, x, gamma, beta), gamma.elems};
  isa().layer_norm_forward(ctx.threads(), {.y = data_of(y),
                                           .x = data_of(x.x),
                                           .gamma = data_of(gamma),
                                           .beta = data_of(beta),
                                           .mean = floats_of(mean),
                                           .rstd = floats_of(rstd),
                                           .wide = scratch(ctx, layer_norm_forward_scratch(rows.width)),
                                           .rows = rows,
                                           .eps = eps,
                                           .residual = data_or_none(x.residual),
                                           .sum = data_or_none(x.sum)});
}

void layer_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, Buffer dbeta, NormGradient dy, Buffer x, Buffer mean, Buffer rstd,
                         Buffer gamma, float grad_beta) {
  const Rows rows{checks::layer_norm_backward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma), gamma.elems};
  float* wide = scratch(ctx, layer_norm_backward_scratch(rows.count, rows.width));
  float *dgamma_sums = wide + rows.width, *dbeta_sums = wide + 2 * rows.width;
  isa().layer_norm_backward(ctx.threads(), {.dx = data_of(dx),
                                            .dy = data_of(dy.dy),
                                            .x = data_of(x),
                                            .gamma = data_of(gamma),
                                            .dgamma = dgamma_sums,
                                            .dbeta = dbeta_sums,
                                            .wide = wide,
                                            .parts = wide + 3 * rows.width,
                                            .mean = floats_of(mean),
                                            .rstd = floats_of(rstd),
                                            .rows = rows,
                                            .skip = data_or_none(dy.skip)});
  store_gradient(ctx, dgamma, dgamma_sums, grad_beta);
  store_gradient(ctx, dbeta, dbeta_sums, grad_beta);
}

void rms_norm_forward(ExecContext& ctx, Buffer y, Buffer rstd, NormInput x, Buffer gamma, float eps) {
  const Rows rows{checks::rms_norm_forward(y, rstd, x, gamma), gamma.elems};
  isa().layer_norm_forward(ctx.threads(), {.y = data_of(y),
                                           .x = data_of(x.x),
                                           .gamma = data_of(gamma),
                                           .beta = {},
                                           .mean = nullptr,
                                           .rstd = floats_of(rstd),
                                           .wide = scratch(ctx, layer_norm_forward_scratch(rows.width)),
                                           .rows = rows,
                                           .eps = eps,
                                           .residual = data_or_none(x.residual),
                                           .sum = data_or_none(x.sum)});
}

void rms_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, NormGradient dy, Buffer x, Buffer rstd, Buffer gamma, float grad_beta) {
  const Rows rows{checks::rms_norm_backward(dx, dgamma, dy, x, rstd, gamma), gamma.elems};
  float *wide = scratch(ctx, layer_norm_backward_scratch(rows.count, rows.width)), *sums = wide + rows.width;
  isa().layer_norm_backward(ctx.threads(), {.dx = data_of(dx),
                                            .dy = data_of(dy.dy),
                                            .x = data_of(x),
                                            .gamma = data_of(gamma),
                                            .dgamma = sums,
                                            .dbeta = nullptr,
                                            .wide = wide,
                                            .parts = wide + 3 * rows.width,
                                            .mean = nullptr,
                                            .rstd = floats_of(rstd),
                                            .rows = rows,
                                            .skip = data_or_none(dy.skip)});
  store_gradient(ctx, dgamma, sums, grad_beta);
}

void swiglu_forward(ExecContext& ctx, Buffer y, Buffer x, std::int64_t width) {
  isa().swiglu_forward(ctx.threads(), data_of(y), data_of(x), {checks::swiglu(y, x, width), width});
}

void swiglu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, std::int64_t width) {
  checks::same_as("dx", dx, x);
  isa().swiglu_backward(ctx.threads(), data_of(dx), data_of(dy), data_of(x), {checks::swiglu(dy, x, width), width});
}

void rotary(ExecContext& ctx, Buffer out, Buffer in, const AttentionDims& dims, const RotaryOptions& options) {
  isa().rotary(ctx.threads(), {.out = data_of(out),
                               .in = data_of(in),
                               .dims = dims,
                               .ratio = checks::rotary(out, in, dims, options),
                               .is_inverse = options.is_inverse,
                               .scratch = scratch(ctx, rotary_scratch(ctx.threads(), dims))});
}

namespace {

Attention attention_args(ExecContext& ctx, const Buffer& out, const Buffer& lse, const Buffer& qkv, const AttentionDims& dims) {
  checks::attention(out, lse, qkv, dims);
  return {.out = data_of(out),
          .qkv = data_of(qkv),
          .dout = {},
          .dqkv = {},
          .lse = floats_of(lse),
          .dims = dims,
          .scratch = scratch(ctx, attention_scratch(ctx.threads(), dims)),
          .scratch_elems = round_up(attention_scratch_elems(dims), 16)};
}

CrossEntropy cross_entropy_args(const Buffer& lse, const Buffer& logits, const Buffer& targets, std::int64_t classes) {
  const std::int64_t rows = targets.elems, stride = checks::cross_entropy(lse, logits, targets, classes);
  check_indices("target", targets.as<std::int32_t>(), rows, classes);
  return {.losses = nullptr,
          .lse = floats_of(lse),
          .logits = floats_of(logits),
          .dlogits = {},
          .targets = targets.as<std::int32_t>(),
          .rows = rows,
          .stride = stride,
          .classes = classes,
          .factor = 1.0f};
}

}  // namespace

void attention_forward(ExecContext& ctx, Buffer out, Buffer lse, Buffer qkv, const AttentionDims& dims) {
  isa().attention_forward(ctx.threads(), attention_args(ctx, out, lse, qkv, dims));
}

void attention_backward(ExecContext& ctx, Buffer dqkv, Buffer dout, Buffer out, Buffer qkv, Buffer lse, const AttentionDims& dims) {
  Attention args = attention_args(ctx, out, lse, qkv, dims);
  checks::same_as("dqkv", dqkv, qkv);
  checks::same_as("dout", dout, out);
  args.dqkv = data_of(dqkv);
  args.dout = data_of(dout);
  isa().attention_backward(ctx.threads(), args);
}

void cross_entropy_forward(ExecContext& ctx, Buffer losses, Buffer lse, Buffer logits, Buffer targets, std::int64_t classes) {
  if (targets.empty()) return;
  CrossEntropy args = cross_entropy_args(lse, logits, targets, classes);
  checks::cross_entropy_losses(losses, targets);
  args.losses = floats_of(losses);
  isa().cross_entropy_forward(ctx.threads(), args);
}

void cross_entropy_backward(ExecContext& ctx, Buffer dlogits, Buffer logits, Buffer lse, Buffer targets, Buffer dloss, std::int64_t classes,
                            float factor) {
  if (targets.empty()) return;
  CrossEntropy args = cross_entropy_args(lse, logits, targets, classes);
  checks::cross_entropy_gradient(dlogits, logits, dloss);
  args.dlogits = data_of(dlogits);
  args.factor = factor * *floats_of(dloss);
  isa().cross_entropy_backward(ctx.threads(), args);
}

}  // namespace zs::cpu
