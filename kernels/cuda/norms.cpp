#include "kernels/checks.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

void layer_norm_forward(ExecContext& ctx, Buffer y, Buffer mean, Buffer rstd, NormInput x, Buffer gamma, Buffer beta,
                        float eps) {
  const Rows rows{checks::layer_norm_forward(y, mean, rstd, x, gamma, beta), gamma.elems};
  const LayerNormArgs args{
      .y = data_of(y),
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
void layer_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, Buffer dbeta, NormGradient dy, Buffer x,
                         Buffer mean, Buffer rstd, Buffer gamma, float grad_beta) {
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
  add_parts(ctx, dgamma, sums, parts.count, 2 * rows.width, grad_beta);
  add_parts(ctx, dbeta, sums + rows.width, parts.count, 2 * rows.width, grad_beta);
  const LayerNormBackwardArgs args{
      .dx = data_of(dx),
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
  const LayerNormArgs args{
      .y = data_of(y),
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
void rms_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, NormGradient dy, Buffer x, Buffer rstd, Buffer gamma,
                       float grad_beta) {
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
  add_parts(ctx, dgamma, sum_columns(ctx, columns, parts, 1), parts.count, rows.width, grad_beta);
  const LayerNormBackwardArgs args{
      .dx = data_of(dx),
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

}  // namespace

void fill_norms(KernelTable& table, KernelNames& names) {
  // Sums have the stream's workspace (ExecContext::workspace).
  table.scratch.layer_norm_forward = [](std::int64_t) { return std::int64_t{0}; };
  table.scratch.layer_norm_backward = [](std::int64_t, std::int64_t) { return std::int64_t{0}; };
  table.layer_norm_forward = layer_norm_forward;
  table.layer_norm_backward = layer_norm_backward;
  table.rms_norm_forward = rms_norm_forward;
  table.rms_norm_backward = rms_norm_backward;
  names.insert(names.end(),
               {"zs_layer_norm_forward", "zs_layer_norm_backward", "zs_rms_norm_forward", "zs_rms_norm_backward"});
}

}  // namespace zs::cuda
