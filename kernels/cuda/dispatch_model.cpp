#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"

/// The layers of a model.
namespace zs::cuda {
namespace {

/// Whether rows of `width` elements, which begin at these addresses, are whole packs.
template <class... Address>
bool are_whole_packs(std::int64_t width, Address... addresses) {
  return width % kRowElems == 0 && are_aligned(addresses...);
}

std::int64_t packs_of(std::int64_t width) { return (width + kRowElems - 1) / kRowElems; }

Data data_or_none(const Buffer& buffer) { return buffer.empty() ? kNone : data_of(buffer); }

/// Parts of the rows whose columns are summed apart, so that the GPU is busy and the parts fit into the workspace; they follow from the
/// shape alone.
struct Parts {
  std::int64_t count, rows_each;
};
Parts parts_of(const Rows& rows, std::int64_t sums) {
  constexpr std::int64_t kFewestRows = 32, kMost = 256;
  const std::int64_t fit = ExecContext::kWorkspaceBytes / (sums * rows.width * size_of(DType::f32));
  ZS_CHECK(fit >= 1, "sums over rows of {} elements do not fit into {} bytes", rows.width, ExecContext::kWorkspaceBytes);
  const std::int64_t most = std::min(kMost, fit), each = std::max(kFewestRows, (rows.count + most - 1) / most);
  return {(rows.count + each - 1) / each, each};
}

/// out (width) := the sums of the columns' parts from `first` of the workspace on, + beta * out
void fold(ExecContext& ctx, const Buffer& out, const float* first, std::int64_t count, std::int64_t stride, float beta) {
  const FoldArgs args{.parts = first, .count = count, .stride = stride, .width = out.elems, .out = data_of(out), .beta = beta};
  launch_elems(ctx, "zs_fold_columns", out.elems, 1, args);
}

float* sum_columns(ExecContext& ctx, ColumnSumsArgs args, const Parts& parts, std::int64_t sums) {
  args.parts = static_cast<float*>(ctx.workspace(parts.count * sums * args.rows.width * size_of(DType::f32)));
  args.rows_a_part = parts.rows_each;
  launch_elems(ctx, "zs_column_sums", parts.count * packs_of(args.rows.width), 1, args);
  return args.parts;
}

/// What the table's rows hold before rows are added.
void begin_table(ExecContext& ctx, const Buffer& table, float beta) {
  if (beta == 0.0f) return zero(ctx, table);
  if (beta != 1.0f) scale(ctx, table, table, beta);
}

CrossEntropyArgs cross_entropy_args(const Buffer& lse, const Buffer& logits, const Buffer& targets, std::int64_t classes) {
  const std::int64_t stride = checks::cross_entropy(lse, logits, targets, classes);
  return {.losses = nullptr,
          .lse = floats_of(lse),
          .logits = floats_of(logits),
          .dlogits = kNone,
          .dloss = nullptr,
          .targets = targets.as<std::int32_t>(),
          .rows = targets.elems,
          .stride = stride,
          .classes = classes,
          .factor = 1.0f,
          .is_aligned = are_whole_packs(stride, logits.data)};
}

}  // namespace

void bias_backward(ExecContext& ctx, Buffer dbias, Buffer dy, float beta) {
  const Rows rows{checks::rows_of(dy, dbias.elems), dbias.elems};
  checks::gradient("dbias", dbias, dy);
  const Parts parts = parts_of(rows, 1);
  const ColumnSumsArgs args{.dy = data_of(dy),
                            .x = kNone,
                            .mean = nullptr,
                            .rstd = nullptr,
                            .parts = nullptr,
                            .rows = rows,
                            .rows_a_part = 0,
                            .is_aligned = are_whole_packs(rows.width, dy.data)};
  fold(ctx, dbias, sum_columns(ctx, args, parts, 1), parts.count, rows.width, beta);
}

void embedding_forward(ExecContext& ctx, Buffer out, Buffer ids, Buffer table, Buffer positions, std::int64_t time) {
  if (ids.empty()) return;
  const checks::TableRows found = checks::embedding_forward(out, ids, table, positions, time);
  const EmbeddingArgs args{.out = data_of(out),
                           .table = data_of(table),
                           .positions = data_or_none(positions),
                           .ids = ids.as<std::int32_t>(),
                           .rows = {found.tokens, found.width},
                           .table_rows = found.table_rows,
                           .time = std::max<std::int64_t>(time, 1),
                           .is_aligned = are_whole_packs(found.width, out.data, table.data, positions.data)};
  launch_elems(ctx, "zs_embedding_forward", found.tokens * packs_of(found.width), 1, args);
}

void embedding_backward(ExecContext& ctx, Buffer dtable, Buffer ids, Buffer dy, std::int64_t width, float beta) {
  const checks::TableRows found = checks::embedding_backward(dtable, ids, dy, width);
  begin_table(ctx, dtable, beta);
  const ScatterArgs args{.table = data_of(dtable),
                         .dy = data_of(dy),
                         .ids = ids.as<std::int32_t>(),
                         .rows = {found.tokens, width},
                         .table_rows = found.table_rows,
                         .time = 0,
                         .is_aligned = are_whole_packs(width, dtable.data, dy.data)};
  launch(ctx, "zs_embedding_backward", found.tokens, kThreads, &args);
}

void position_backward(ExecContext& ctx, Buffer dpositions, Buffer dy, std::int64_t time, std::int64_t width, float beta) {
  const checks::TableRows found = checks::position_backward(dpositions, dy, time, width);
  begin_table(ctx, dpositions, beta);
  const ScatterArgs args{.table = data_of(dpositions),
                         .dy = data_of(dy),
                         .ids = nullptr,
                         .rows = {found.tokens, width},
                         .table_rows = found.table_rows,
                         .time = time,
                         .is_aligned = are_whole_packs(width, dpositions.data, dy.data)};
  launch(ctx, "zs_position_backward", time, kThreads, &args);
}

void layer_norm_forward(ExecContext& ctx, Buffer y, Buffer mean, Buffer rstd, NormInput x, Buffer gamma, Buffer beta, float eps) {
  const Rows rows{checks::layer_norm_forward(y, mean, rstd, x, gamma, beta), gamma.elems};
  const LayerNormArgs args{.y = data_of(y),
                           .x = data_of(x.x),
                           .residual = data_or_none(x.residual),
                           .sum = data_or_none(x.sum),
                           .gamma = data_of(gamma),
                           .beta = data_of(beta),
                           .mean = floats_of(mean),
                           .rstd = floats_of(rstd),
                           .rows = rows,
                           .eps = eps,
                           .is_aligned = are_whole_packs(rows.width, y.data, x.x.data, x.residual.data, x.sum.data, gamma.data, beta.data)};
  launch(ctx, "zs_layer_norm_forward", rows.count, kThreads, &args);
}

/// dgamma and dbeta first: dx may be dy.
void layer_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, Buffer dbeta, NormGradient dy, Buffer x, Buffer mean, Buffer rstd,
                         Buffer gamma, float grad_beta) {
  const Rows rows{checks::layer_norm_backward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma), gamma.elems};
  const Parts parts = parts_of(rows, 2);
  const ColumnSumsArgs columns{.dy = data_of(dy.dy),
                               .x = data_of(x),
                               .mean = floats_of(mean),
                               .rstd = floats_of(rstd),
                               .parts = nullptr,
                               .rows = rows,
                               .rows_a_part = 0,
                               .is_aligned = are_whole_packs(rows.width, dy.dy.data, x.data)};
  const float* const sums = sum_columns(ctx, columns, parts, 2);
  fold(ctx, dgamma, sums, parts.count, 2 * rows.width, grad_beta);
  fold(ctx, dbeta, sums + rows.width, parts.count, 2 * rows.width, grad_beta);
  const LayerNormBackwardArgs args{.dx = data_of(dx),
                                   .dy = data_of(dy.dy),
                                   .skip = data_or_none(dy.skip),
                                   .x = data_of(x),
                                   .gamma = data_of(gamma),
                                   .mean = floats_of(mean),
                                   .rstd = floats_of(rstd),
                                   .rows = rows,
                                   .is_aligned = are_whole_packs(rows.width, dx.data, dy.dy.data, dy.skip.data, x.data, gamma.data)};
  launch(ctx, "zs_layer_norm_backward", rows.count, kThreads, &args);
}

void rms_norm_forward(ExecContext& ctx, Buffer y, Buffer rstd, NormInput x, Buffer gamma, float eps) {
  const Rows rows{checks::rms_norm_forward(y, rstd, x, gamma), gamma.elems};
  const LayerNormArgs args{.y = data_of(y),
                           .x = data_of(x.x),
                           .residual = data_or_none(x.residual),
                           .sum = data_or_none(x.sum),
                           .gamma = data_of(gamma),
                           .beta = kNone,
                           .mean = nullptr,
                           .rstd = floats_of(rstd),
                           .rows = rows,
                           .eps = eps,
                           .is_aligned = are_whole_packs(rows.width, y.data, x.x.data, x.residual.data, x.sum.data, gamma.data)};
  launch(ctx, "zs_rms_norm_forward", rows.count, kThreads, &args);
}

/// dgamma first: dx may be dy.
void rms_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, NormGradient dy, Buffer x, Buffer rstd, Buffer gamma, float grad_beta) {
  const Rows rows{checks::rms_norm_backward(dx, dgamma, dy, x, rstd, gamma), gamma.elems};
  const Parts parts = parts_of(rows, 1);
  const ColumnSumsArgs columns{.dy = data_of(dy.dy),
                               .x = data_of(x),
                               .mean = nullptr,
                               .rstd = floats_of(rstd),
                               .parts = nullptr,
                               .rows = rows,
                               .rows_a_part = 0,
                               .is_aligned = are_whole_packs(rows.width, dy.dy.data, x.data)};
  fold(ctx, dgamma, sum_columns(ctx, columns, parts, 1), parts.count, rows.width, grad_beta);
  const LayerNormBackwardArgs args{.dx = data_of(dx),
                                   .dy = data_of(dy.dy),
                                   .skip = data_or_none(dy.skip),
                                   .x = data_of(x),
                                   .gamma = data_of(gamma),
                                   .mean = nullptr,
                                   .rstd = floats_of(rstd),
                                   .rows = rows,
                                   .is_aligned = are_whole_packs(rows.width, dx.data, dy.dy.data, dy.skip.data, x.data, gamma.data)};
  launch(ctx, "zs_rms_norm_backward", rows.count, kThreads, &args);
}

void swiglu_forward(ExecContext& ctx, Buffer y, Buffer x, std::int64_t width) {
  const SwigluArgs args{.y = data_of(y),
                        .x = data_of(x),
                        .dy = kNone,
                        .dx = kNone,
                        .rows = {checks::swiglu(y, x, width), width},
                        .is_aligned = are_whole_packs(width, y.data, x.data)};
  launch_elems(ctx, "zs_swiglu_forward", args.rows.count * packs_of(width), 1, args);
}

void swiglu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, std::int64_t width) {
  checks::same_as("dx", dx, x);
  const SwigluArgs args{.y = kNone,
                        .x = data_of(x),
                        .dy = data_of(dy),
                        .dx = data_of(dx),
                        .rows = {checks::swiglu(dy, x, width), width},
                        .is_aligned = are_whole_packs(width, dx.data, dy.data, x.data)};
  launch_elems(ctx, "zs_swiglu_backward", args.rows.count * packs_of(width), 1, args);
}

void rotary(ExecContext& ctx, Buffer out, Buffer in, const AttentionDims& dims, const RotaryOptions& options) {
  const std::int64_t width = qkv_width_of(dims), kept = kv_heads_of(dims) * dims.head_dim;
  const RotaryArgs args{.out = data_of(out),
                        .in = data_of(in),
                        .tokens = dims.batch * dims.time,
                        .time = dims.time,
                        .head_dim = dims.head_dim,
                        .turned = width - kept,
                        .kept = kept,
                        .ratio = checks::rotary(out, in, dims, options),
                        .is_inverse = options.is_inverse,
                        .is_aligned = are_whole_packs(dims.head_dim / 2, out.data, in.data)};
  launch(ctx, "zs_rotary", args.tokens, kThreads, &args, static_cast<int>(dims.head_dim / 2 * 2 * size_of(DType::f32)));
}

void cross_entropy_forward(ExecContext& ctx, Buffer losses, Buffer lse, Buffer logits, Buffer targets, std::int64_t classes) {
  if (targets.empty()) return;
  CrossEntropyArgs args = cross_entropy_args(lse, logits, targets, classes);
  checks::cross_entropy_losses(losses, targets);
  args.losses = floats_of(losses);
  launch(ctx, "zs_cross_entropy_forward", args.rows, kThreads, &args);
}

void cross_entropy_backward(ExecContext& ctx, Buffer dlogits, Buffer logits, Buffer lse, Buffer targets, Buffer dloss, std::int64_t classes,
                            float factor) {
  if (targets.empty()) return;
  CrossEntropyArgs args = cross_entropy_args(lse, logits, targets, classes);
  checks::cross_entropy_gradient(dlogits, logits, dloss);
  args.dlogits = data_of(dlogits);
  args.dloss = floats_of(dloss);
  args.factor = factor;
  args.is_aligned = are_whole_packs(args.stride, logits.data, dlogits.data);
  launch_elems(ctx, "zs_cross_entropy_backward", args.rows * packs_of(args.stride), 1, args);
}

}  // namespace zs::cuda
