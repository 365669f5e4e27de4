#pragma once

#include <functional>

#include "kernels/expert_kernels.h"
#include "runtime/tensor/parameter.h"
#include "runtime/tensor/tensor.h"

namespace zs {

// The ops of mixtures of experts (Shazeer et al. 2017, arXiv:1701.06538): dropless, so that shapes follow from the
// numbers of tokens and experts alone, and no buffer has tokens x experts rows. N tokens, E experts, k of them for each
// token. Sums and rows have an order that follows from the choice alone. On the CPU; elsewhere a UsageError.
//
// Rows of experts that are dealt over ranks (ExpertExchange) are as many as the ranks' choices make them, which the
// host does not know: their tensors have room for the most that there can be, what lies after the rows has no meaning,
// and no op of this header reads or writes it.

/// Options of route.
struct RouteOptions {
  std::int64_t chosen = 2;
  RouterScores scores = RouterScores::softmax;
  bool normalizes = true;
  float factor = 1;
};

/// The experts of each token, and their rows. Of experts that are dealt over ranks: of one rank's, offsets and shares
/// alone, of which shares have no meaning.
struct Routing {
  Tensor weights;        ///< (N, k) f32, with gradient
  Tensor ids;            ///< (N, k) i32: by score, and of equals the lower id first
  Tensor order, places;  ///< (N k) i32: see SortedRows
  Tensor offsets;        ///< (E + 1) i64
  Tensor shares;         ///< (E) f32: of all rows

  std::int64_t experts() const { return shares.numel(); }
};

/// (N, C) -> (N, E) f32, summed and stored in f32 whatever x is: x weight^T + bias, weight (E, C), bias (E) or null.
Tensor router_logits(const Tensor& x, Parameter& weight, Parameter* bias);
/// The choice by logits (N, E) f32. selection_bias (E), or null: added to the scores for the choice alone, without
/// gradient.
Routing route(const Tensor& logits, const RouteOptions& options, Parameter* selection_bias = nullptr);
/// (N, C) -> (N k, C): the rows of each expert, one after the other.
Tensor gather_tokens(const Tensor& x, const Routing& routing);
/// (N k, in) -> (N k, out): each row with its expert's weight and bias; weight (E out, in), bias (E out) or null.
Tensor grouped_linear(const Tensor& x, Parameter& weight, Parameter* bias, const Routing& routing);
/// (N k, 2 hidden) -> (N k, hidden): swiglu() of each row.
Tensor expert_swiglu(const Tensor& x, const Routing& routing);
/// (N k, C) -> (N, C): the sum of each token's rows times their weights, carried in f32.
Tensor combine_tokens(const Tensor& y, const Routing& routing);

/// x, whose backward adds `loss`, a scalar f32, times `seed` to what is minimised: a loss of something inside a model,
/// recomputed parts included. seed: d loss / d loss of the model's, f32, called when the backward arrives here.
Tensor with_loss(const Tensor& x, const Tensor& loss, std::function<Tensor()> seed);

}  // namespace zs
