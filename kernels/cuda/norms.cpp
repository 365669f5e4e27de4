#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

/// Kernels of one norm.
struct NormKernels {
  const char *forward, *forward_wide, *backward, *sums, *gradients_f32, *gradients_bf16, *gradients_wide;
};
constexpr NormKernels kLayerNorm{
    "zs_layer_norm_forward",       "zs_layer_norm_forward_wide",   "zs_layer_norm_backward",      "zs_layer_norm_sums",
    "zs_layer_norm_gradients_f32", "zs_layer_norm_gradients_bf16", "zs_layer_norm_gradients_wide"};
constexpr NormKernels kRmsNorm{"zs_rms_norm_forward",       "zs_rms_norm_forward_wide",  "zs_rms_norm_backward",
                               "zs_rms_norm_sums",          "zs_rms_norm_gradients_f32", "zs_rms_norm_gradients_bf16",
                               "zs_rms_norm_gradients_wide"};

constexpr std::int64_t kRowsABlock = kThreads / kWarp;

bool fits(std::int64_t width, int packs) { return packs_of(width) <= packs * kWarp; }

/// has_one_dtype: parameters have that of x.
void forward(ExecContext& ctx, const NormKernels& kernels, LayerNormArgs args, bool has_one_dtype) {
  const std::int64_t width = args.rows.width;
  args.is_aligned = are_whole_packs(width, args.y.address, args.x.address, args.residual.address, args.sum.address,
                                    args.gamma.address, args.beta.address);
  const bool can_hold = args.is_aligned && has_one_dtype;
  args.is_held = can_hold && fits(width, kNormPacks);
  const bool is_wide = can_hold && !args.is_held && args.x.is_bf16 && fits(width, kWideNormPacks);
  launch(ctx, is_wide ? kernels.forward_wide : kernels.forward, (args.rows.count + kRowsABlock - 1) / kRowsABlock,
         kThreads, &args);
}

/// Of either norm.
LayerNormArgs forward_args(const Buffer& y, const Buffer& rstd, const NormInput& x, const Buffer& gamma,
                           std::int64_t rows, float eps) {
  return {.y = data_of(y),
          .x = data_of(x.x),
          .residual = data_or_none(x.residual),
          .sum = data_or_none(x.sum),
          .gamma = data_of(gamma),
          .rstd = floats_of(rstd),
          .rows = {rows, gamma.elems},
          .eps = eps};
}

void layer_norm_forward(ExecContext& ctx, Buffer y, Buffer mean, Buffer rstd, NormInput x, Buffer gamma, Buffer beta,
                        float eps) {
  const std::int64_t rows = checks::layer_norm_forward(y, mean, rstd, x, gamma, beta);
  LayerNormArgs args = forward_args(y, rstd, x, gamma, rows, eps);
  args.beta = data_of(beta);
  args.mean = floats_of(mean);
  forward(ctx, kLayerNorm, args, gamma.dtype == x.x.dtype && beta.dtype == x.x.dtype);
}

void rms_norm_forward(ExecContext& ctx, Buffer y, Buffer rstd, NormInput x, Buffer gamma, float eps) {
  const std::int64_t rows = checks::rms_norm_forward(y, rstd, x, gamma);
  forward(ctx, kRmsNorm, forward_args(y, rstd, x, gamma, rows, eps), gamma.dtype == x.x.dtype);
}

/// The kernel that computes dx and sums of columns in one reading of rows that fit; else null.
const char* gradients_of(const NormKernels& kernels, const LayerNormBackwardArgs& args, int wide_packs) {
  if (!args.is_aligned || args.gamma.is_bf16 != args.x.is_bf16) return nullptr;
  if (fits(args.rows.width, kNormPacks)) return args.x.is_bf16 ? kernels.gradients_bf16 : kernels.gradients_f32;
  return args.x.is_bf16 && fits(args.rows.width, wide_packs) ? kernels.gradients_wide : nullptr;
}

/// grads: dgamma, and dbeta of layer norm. Either way has the same bits.
void backward(ExecContext& ctx, const NormKernels& kernels, LayerNormBackwardArgs args,
              std::initializer_list<Buffer> grads, float grad_beta) {
  constexpr std::int64_t kMostParts = 256, kRowsAWarp = 2;
  const Rows& rows = args.rows;
  const bool is_layer = grads.size() == 2;
  const ColumnSums sums = make_column_sums(ctx, rows, is_layer ? 2 : 1, kMostParts, kRowsAWarp * kRowsABlock);
  args.is_aligned = are_whole_packs(rows.width, args.dx.address, args.dy.address, args.skip.address, args.x.address,
                                    args.gamma.address);
  args.parts = sums.parts;
  if (const char* const gradients = gradients_of(kernels, args, is_layer ? kWideSumsPacks : kWideNormPacks)) {
    launch(ctx, gradients, sums.count, kThreads, &args);
    return add_parts(ctx, sums, grads, grad_beta);
  }
  sum_columns(ctx, kernels.sums,  // first: dx may be dy
              {.dy = args.dy,
               .x = args.x,
               .mean = args.mean,
               .rstd = args.rstd,
               .rows = rows,
               .is_aligned = are_whole_packs(rows.width, args.dy.address, args.x.address)},
              sums);
  add_parts(ctx, sums, grads, grad_beta);
  launch(ctx, kernels.backward, (rows.count + kRowsABlock - 1) / kRowsABlock, kThreads, &args);
}

/// Of either norm.
LayerNormBackwardArgs backward_args(const Buffer& dx, const NormGradient& dy, const Buffer& x, const Buffer& rstd,
                                    const Buffer& gamma, std::int64_t rows) {
  return {.dx = data_of(dx),
          .dy = data_of(dy.dy),
          .skip = data_or_none(dy.skip),
          .x = data_of(x),
          .gamma = data_of(gamma),
          .rstd = floats_of(rstd),
          .rows = {rows, gamma.elems}};
}

void layer_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, Buffer dbeta, NormGradient dy, Buffer x,
                         Buffer mean, Buffer rstd, Buffer gamma, float grad_beta) {
  const std::int64_t rows = checks::layer_norm_backward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma);
  LayerNormBackwardArgs args = backward_args(dx, dy, x, rstd, gamma, rows);
  args.mean = floats_of(mean);
  backward(ctx, kLayerNorm, args, {dgamma, dbeta}, grad_beta);
}

void rms_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, NormGradient dy, Buffer x, Buffer rstd, Buffer gamma,
                       float grad_beta) {
  const std::int64_t rows = checks::rms_norm_backward(dx, dgamma, dy, x, rstd, gamma);
  backward(ctx, kRmsNorm, backward_args(dx, dy, x, rstd, gamma, rows), {dgamma}, grad_beta);
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
  for (const NormKernels& k : {kLayerNorm, kRmsNorm})
    names.insert(names.end(),
                 {k.forward, k.forward_wide, k.backward, k.sums, k.gradients_f32, k.gradients_bf16, k.gradients_wide});
}

}  // namespace zs::cuda
