#include <algorithm>

#include "kernels/cpu/dispatch.h"

/// Checks and unpacking for the layers of a model.
namespace zs::cpu {
namespace {

Rows rows_of(const Buffer& buffer, std::int64_t width) {
  ZS_CHECK(width > 0 && buffer.elems % width == 0, "{} elements do not make rows of {}", buffer.elems, width);
  return {buffer.elems / width, width};
}

void check_same(const char* what, const Buffer& buffer, const Buffer& like) {
  ZS_CHECK(buffer.elems == like.elems && buffer.dtype == like.dtype, "{} is {} x {}, expected {} x {}", what, buffer.elems,
           name_of(buffer.dtype), like.elems, name_of(like.dtype));
}

void check_gradient(const char* what, const Buffer& gradient, const Buffer& dy) {
  ZS_CHECK(gradient.dtype == DType::f32 || gradient.dtype == dy.dtype, "{} is {}, expected f32 or {}", what, name_of(gradient.dtype),
           name_of(dy.dtype));
}

/// gradient := sums + beta * gradient; for beta 0 what it holds is not read.
void store_gradient(ExecContext& ctx, Buffer gradient, float* sums, float beta) {
  const Buffer in{sums, gradient.elems, DType::f32, gradient.device};
  if (beta == 0.0f) return cast(ctx, gradient, in);
  if (beta != 1.0f) scale(ctx, gradient, gradient, beta);
  accumulate(ctx, gradient, in);
}

Buffer as_floats(float* at, const Buffer& like) { return {at, like.elems, DType::f32, like.device}; }

}  // namespace

void bias_backward(ExecContext& ctx, Buffer dbias, Buffer dy, float beta) {
  const Rows rows = rows_of(dy, dbias.elems);
  check_gradient("dbias", dbias, dy);
  float* sums = scratch(ctx, (1 + row_blocks(rows.count).count) * rows.width);
  isa().column_sums(ctx.threads(), sums, sums + rows.width, data_of(dy), rows);
  store_gradient(ctx, dbias, sums, beta);
}

void embedding_forward(ExecContext& ctx, Buffer out, Buffer ids, Buffer table, Buffer positions, std::int64_t time) {
  if (ids.empty()) return;
  ZS_CHECK(out.elems % ids.elems == 0, "{} elements for {} tokens", out.elems, ids.elems);
  const Rows rows{ids.elems, out.elems / ids.elems};
  ZS_CHECK(out.dtype == table.dtype && (positions.empty() || positions.dtype == table.dtype), "out is {}, table {}, positions {}",
           name_of(out.dtype), name_of(table.dtype), name_of(positions.dtype));
  ZS_CHECK(positions.empty() || (time > 0 && positions.elems >= time * rows.width), "{} elements of positions for {} steps of width {}",
           positions.elems, time, rows.width);
  check_indices("token", ids.as<std::int32_t>(), ids.elems, rows_of(table, rows.width).count);
  const Data no_positions{nullptr, table.dtype == DType::bf16};
  isa().embedding(ctx.threads(), {.out = data_of(out),
                                  .table = data_of(table),
                                  .positions = positions.empty() ? no_positions : data_of(positions),
                                  .ids = ids.as<std::int32_t>(),
                                  .rows = rows,
                                  .time = time});
}

void embedding_backward(ExecContext& ctx, Buffer dtable, Buffer ids, Buffer dy, std::int64_t width, float beta) {
  const Rows rows = rows_of(dy, width), table = rows_of(dtable, width);
  ZS_CHECK(rows.count == ids.elems, "{} rows of gradients for {} tokens", rows.count, ids.elems);
  check_gradient("dtable", dtable, dy);
  check_indices("token", ids.as<std::int32_t>(), ids.elems, table.count);
  isa().scatter_rows(ctx.threads(), {.table = data_of(dtable),
                                     .dy = data_of(dy),
                                     .ids = ids.as<std::int32_t>(),
                                     .rows = rows,
                                     .table_rows = table.count,
                                     .period = 0,
                                     .beta = beta});
}

void position_backward(ExecContext& ctx, Buffer dpositions, Buffer dy, std::int64_t time, std::int64_t width, float beta) {
  const Rows rows = rows_of(dy, width), table = rows_of(dpositions, width);
  ZS_CHECK(time > 0 && time <= table.count, "{} steps for {} positions", time, table.count);
  check_gradient("dpositions", dpositions, dy);
  isa().scatter_rows(ctx.threads(), {.table = data_of(dpositions),
                                     .dy = data_of(dy),
                                     .ids = nullptr,
                                     .rows = rows,
                                     .table_rows = table.count,
                                     .period = time,
                                     .beta = beta});
}

void layer_norm_forward(ExecContext& ctx, Buffer y, Buffer mean, Buffer rstd, Buffer x, Buffer gamma, Buffer beta, float eps) {
  const Rows rows = rows_of(x, gamma.elems);
  check_same("y", y, x);
  ZS_CHECK(mean.elems == rows.count && rstd.elems == rows.count && beta.elems == rows.width, "mean {}, rstd {}, beta {} for {} rows of {}",
           mean.elems, rstd.elems, beta.elems, rows.count, rows.width);
  float* wide = scratch(ctx, 2 * rows.width);
  cast(ctx, as_floats(wide, gamma), gamma);
  cast(ctx, as_floats(wide + rows.width, beta), beta);
  isa().layer_norm_forward(ctx.threads(), {.y = data_of(y),
                                           .x = data_of(x),
                                           .mean = floats_of(mean),
                                           .rstd = floats_of(rstd),
                                           .gamma = wide,
                                           .beta = wide + rows.width,
                                           .rows = rows,
                                           .eps = eps});
}

void layer_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, Buffer dbeta, Buffer dy, Buffer x, Buffer mean, Buffer rstd,
                         Buffer gamma, float grad_beta) {
  const Rows rows = rows_of(x, gamma.elems);
  check_same("dx", dx, x);
  check_same("dy", dy, x);
  check_gradient("dgamma", dgamma, x);
  check_gradient("dbeta", dbeta, x);
  ZS_CHECK(mean.elems == rows.count && rstd.elems == rows.count && dgamma.elems == rows.width && dbeta.elems == rows.width,
           "mean {}, rstd {}, dgamma {}, dbeta {} for {} rows of {}", mean.elems, rstd.elems, dgamma.elems, dbeta.elems, rows.count,
           rows.width);
  float* wide = scratch(ctx, (3 + 2 * row_blocks(rows.count).count) * rows.width);
  float *dgamma_sums = wide + rows.width, *dbeta_sums = wide + 2 * rows.width;
  cast(ctx, as_floats(wide, gamma), gamma);
  isa().layer_norm_backward(ctx.threads(), {.dx = data_of(dx),
                                            .dy = data_of(dy),
                                            .x = data_of(x),
                                            .dgamma = dgamma_sums,
                                            .dbeta = dbeta_sums,
                                            .parts = wide + 3 * rows.width,
                                            .mean = floats_of(mean),
                                            .rstd = floats_of(rstd),
                                            .gamma = wide,
                                            .rows = rows});
  store_gradient(ctx, dgamma, dgamma_sums, grad_beta);
  store_gradient(ctx, dbeta, dbeta_sums, grad_beta);
}

namespace {

Attention attention_args(ExecContext& ctx, const Buffer& out, const Buffer& lse, const Buffer& qkv, const AttentionDims& dims) {
  const std::int64_t tokens = dims.batch * dims.time, width = dims.heads * dims.head_dim;
  ZS_CHECK(tokens > 0 && width > 0, "attention over batch {}, time {}, heads {}, head_dim {}", dims.batch, dims.time, dims.heads,
           dims.head_dim);
  ZS_CHECK(qkv.elems == 3 * tokens * width && out.elems == tokens * width && lse.elems == tokens * dims.heads && out.dtype == qkv.dtype,
           "qkv {} x {}, out {} x {}, lse {} for {} tokens, {} heads of {}", qkv.elems, name_of(qkv.dtype), out.elems, name_of(out.dtype),
           lse.elems, tokens, dims.heads, dims.head_dim);
  const std::int64_t per_thread = round_up(attention_scratch_elems(dims), 16);
  const std::int64_t team = std::min<std::int64_t>(ctx.threads(), dims.batch * dims.heads);
  return {.out = data_of(out),
          .qkv = data_of(qkv),
          .dout = {},
          .dqkv = {},
          .lse = floats_of(lse),
          .dims = dims,
          .scratch = scratch(ctx, team * per_thread),
          .scratch_elems = per_thread};
}

CrossEntropy cross_entropy_args(const Buffer& lse, const Buffer& logits, const Buffer& targets, std::int64_t classes) {
  const std::int64_t rows = targets.elems;
  ZS_CHECK(rows > 0 && logits.elems % rows == 0 && lse.elems == rows, "{} logits, {} lse for {} targets", logits.elems, lse.elems, rows);
  const std::int64_t stride = logits.elems / rows;
  ZS_CHECK(classes > 0 && classes <= stride, "{} classes in rows of {}", classes, stride);
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
  check_same("dqkv", dqkv, qkv);
  check_same("dout", dout, out);
  args.dqkv = data_of(dqkv);
  args.dout = data_of(dout);
  isa().attention_backward(ctx.threads(), args);
}

void cross_entropy_forward(ExecContext& ctx, Buffer losses, Buffer lse, Buffer logits, Buffer targets, std::int64_t classes) {
  if (targets.empty()) return;
  CrossEntropy args = cross_entropy_args(lse, logits, targets, classes);
  ZS_CHECK(losses.elems == args.rows, "{} losses for {} rows", losses.elems, args.rows);
  args.losses = floats_of(losses);
  isa().cross_entropy_forward(ctx.threads(), args);
}

void cross_entropy_backward(ExecContext& ctx, Buffer dlogits, Buffer logits, Buffer lse, Buffer targets, Buffer dloss, std::int64_t classes,
                            float factor) {
  if (targets.empty()) return;
  CrossEntropy args = cross_entropy_args(lse, logits, targets, classes);
  ZS_CHECK(dlogits.elems == logits.elems && dloss.elems == 1, "{} dlogits for {} logits, {} dloss", dlogits.elems, logits.elems,
           dloss.elems);
  args.dlogits = data_of(dlogits);
  args.factor = factor * *floats_of(dloss);
  isa().cross_entropy_backward(ctx.threads(), args);
}

}  // namespace zs::cpu
