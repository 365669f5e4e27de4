#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

constexpr std::int64_t kRowsABlock = kThreads / kWarp;

bool fits(std::int64_t width, int packs) { return packs_of(width) <= packs * kWarp; }

/// The kernel of rows that are held in registers, where these fit: gamma has x's dtype then. Else empty.
std::string held(const std::string& kernel, DType dtype, const Buffer& gamma, bool is_aligned, int wide_packs) {
  if (!is_aligned || gamma.dtype != dtype) return "";
  if (fits(gamma.elems, kNormPacks)) return typed(kernel, dtype);
  return dtype == DType::bf16 && fits(gamma.elems, wide_packs) ? kernel + "_wide" : "";
}

/// norm: what its kernels' names begin with. beta: gamma, where there is none.
void forward(ExecContext& ctx, const std::string& norm, LayerNormArgs args, DType dtype, const Buffer& gamma,
             const Buffer& beta) {
  args.is_aligned = are_whole_packs(gamma.elems, args.y, args.x, args.residual, args.sum, args.gamma, args.beta);
  args.is_beta_bf16 = beta.dtype == DType::bf16;
  std::string kernel;
  if (beta.dtype == gamma.dtype) kernel = held(norm + "_forward", dtype, gamma, args.is_aligned, kWideNormPacks);
  if (kernel.empty()) kernel = typed(norm + "_forward_any", dtype, gamma.dtype);
  launch(ctx, kernel, (args.rows.count + kRowsABlock - 1) / kRowsABlock, kThreads, &args);
}

/// Arguments of the forward of either norm.
LayerNormArgs forward_args(const Buffer& y, const Buffer& rstd, const NormInput& x, const NormFactors& gamma,
                           std::int64_t rows, float eps) {
  return {.y = elements_of(y),
          .sum = elements_or_none(x.sum),
          .x = elements_of(x.x),
          .residual = elements_or_none(x.residual),
          .gamma = elements_of(gamma.weight),
          .rstd = floats_of(rstd),
          .rows = {rows, gamma.weight.elems},
          .eps = eps,
          .offset = gamma.offset};
}

void layer_norm_forward(ExecContext& ctx, Buffer y, Buffer mean, Buffer rstd, NormInput x, Buffer gamma, Buffer beta,
                        float eps) {
  const std::int64_t rows = checks::layer_norm_forward(y, mean, rstd, x, gamma, beta);
  LayerNormArgs args = forward_args(y, rstd, x, gamma, rows, eps);
  args.beta = elements_of(beta);
  args.mean = floats_of(mean);
  forward(ctx, "zs_layer_norm", args, x.x.dtype, gamma, beta);
}

void rms_norm_forward(ExecContext& ctx, Buffer y, Buffer rstd, NormInput x, NormFactors gamma, float eps) {
  const std::int64_t rows = checks::rms_norm_forward(y, rstd, x, gamma.weight);
  forward(ctx, "zs_rms_norm", forward_args(y, rstd, x, gamma, rows, eps), x.x.dtype, gamma.weight, gamma.weight);
}

/// grads: dgamma, and dbeta of layer norm. Either way has the same bits.
void backward(ExecContext& ctx, const std::string& norm, LayerNormBackwardArgs args, DType dtype, const Buffer& gamma,
              std::initializer_list<Buffer> grads, float grad_beta) {
  constexpr std::int64_t kMostParts = 256, kRowsAWarp = 2;
  const Rows& rows = args.rows;
  const bool is_layer = grads.size() == 2;
  const ColumnSums sums = make_column_sums(ctx, rows, is_layer ? 2 : 1, kMostParts, kRowsAWarp * kRowsABlock);
  args.is_aligned = are_whole_packs(rows.width, args.dx, args.dy, args.skip, args.x, args.gamma);
  args.parts = sums.parts;
  const std::string gradients =
      held(norm + "_gradients", dtype, gamma, args.is_aligned, is_layer ? kWideSumsPacks : kWideNormPacks);
  if (!gradients.empty()) {
    launch(ctx, gradients, sums.count, kThreads, &args);
    return add_parts(ctx, sums, grads, grad_beta);
  }
  sum_columns(ctx, typed(norm + "_sums", dtype),  // first: dx may be dy
              {.dy = args.dy,
               .x = args.x,
               .mean = args.mean,
               .rstd = args.rstd,
               .rows = rows,
               .is_aligned = are_whole_packs(rows.width, args.dy, args.x)},
              sums);
  add_parts(ctx, sums, grads, grad_beta);
  launch(ctx, typed(norm + "_backward", dtype, gamma.dtype), (rows.count + kRowsABlock - 1) / kRowsABlock, kThreads,
         &args);
}

/// Arguments of the backward of either norm.
LayerNormBackwardArgs backward_args(const Buffer& dx, const NormGradient& dy, const Buffer& x, const Buffer& rstd,
                                    const NormFactors& gamma, std::int64_t rows) {
  return {.dx = elements_of(dx),
          .dy = elements_of(dy.dy),
          .skip = elements_or_none(dy.skip),
          .x = elements_of(x),
          .gamma = elements_of(gamma.weight),
          .rstd = floats_of(rstd),
          .rows = {rows, gamma.weight.elems},
          .offset = gamma.offset};
}

void layer_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, Buffer dbeta, NormGradient dy, Buffer x,
                         Buffer mean, Buffer rstd, Buffer gamma, float grad_beta) {
  const std::int64_t rows = checks::layer_norm_backward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma);
  LayerNormBackwardArgs args = backward_args(dx, dy, x, rstd, gamma, rows);
  args.mean = floats_of(mean);
  backward(ctx, "zs_layer_norm", args, x.dtype, gamma, {dgamma, dbeta}, grad_beta);
}

void rms_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, NormGradient dy, Buffer x, Buffer rstd,
                       NormFactors gamma, float grad_beta) {
  const std::int64_t rows = checks::rms_norm_backward(dx, dgamma, dy, x, rstd, gamma.weight);
  backward(ctx, "zs_rms_norm", backward_args(dx, dy, x, rstd, gamma, rows), x.dtype, gamma.weight, {dgamma}, grad_beta);
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
  for (const std::string norm : {"zs_layer_norm", "zs_rms_norm"}) {
    add_typed(names, {norm + "_forward", norm + "_sums", norm + "_gradients"});
    add_pairs(names, {norm + "_forward_any", norm + "_backward"});
    names.insert(names.end(), {norm + "_forward_wide", norm + "_gradients_wide"});
  }
}

}  // namespace zs::cuda
