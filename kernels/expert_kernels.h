#pragma once

#include <cstdint>

#include "runtime/base/buffer.h"
#include "runtime/device/stream.h"

namespace zs {

/// Scores that a router makes of a token's logits: of all experts together, or of each by itself.
enum class RouterScores : std::uint8_t { softmax, sigmoid };

/// Choice of experts for each of so many tokens.
struct RouteDims {
  std::int64_t tokens, experts, chosen;
  RouterScores scores = RouterScores::softmax;
  bool normalizes = true;  ///< the scores of those chosen are divided by their sum
  float factor = 1;        ///< factor of the weights after that
};

/// The rows of all tokens, one for each expert that a token has chosen, sorted by expert and then by token: row
/// places[token chosen + slot] is that of a token's slot, and order[] is the inverse; expert e has rows [offsets[e],
/// offsets[e + 1]). A stable sort: every token keeps all its experts, and no row is padding.
struct SortedRows {
  Buffer order, places;  ///< i32 (tokens chosen)
  Buffer offsets;        ///< i64 (experts + 1)
  Buffer shares;         ///< f32 (experts): of all rows
};

/// Products of rows with the weights of their experts: weights (experts out, in), one expert's below the other's.
struct GroupedDims {
  std::int64_t rows, experts, out, in;
};

/// Kernels of mixtures of experts; null in a back end that has none. Rows, products and sums have an order that follows
/// from the ids alone: the same bits at any number of threads. Indices into elements are of 64 bits. x, y and weights
/// of a product have one dtype, f32 or bf16.
struct ExpertKernels {
  /// weights f32 (tokens, chosen) and ids i32 (tokens, chosen) from logits f32 (tokens, experts): the largest first,
  /// and of equals the lower id; NaN is the largest. bias f32 (experts), or empty, is added to the scores for the
  /// choice alone.
  void (*route)(ExecContext& ctx, Buffer weights, Buffer ids, Buffer logits, Buffer bias, const RouteDims& dims);
  /// dlogits f32 := from dweights f32
  void (*route_backward)(ExecContext& ctx, Buffer dlogits, Buffer dweights, Buffer ids, Buffer logits,
                         const RouteDims& dims);
  void (*sort_rows)(ExecContext& ctx, const SortedRows& rows, Buffer ids, std::int64_t experts);
  /// y (rows, width) := for each row its token's of x (tokens, width)
  void (*gather_rows)(ExecContext& ctx, Buffer y, Buffer x, Buffer order, std::int64_t width);
  /// out (tokens, width) := the sum of a token's rows of y, in the order of its slots, times weights f32 (tokens,
  /// chosen), or, where that is empty, as they are; carried in f32
  void (*combine_rows)(ExecContext& ctx, Buffer out, Buffer y, Buffer weights, Buffer places, std::int64_t width);
  /// dy (rows, width) and dweights f32 (tokens, chosen) of that sum, from dout (tokens, width)
  void (*combine_backward)(ExecContext& ctx, Buffer dy, Buffer dweights, Buffer dout, Buffer y, Buffer weights,
                           Buffer places, std::int64_t width);
  /// y (rows, out) := x (rows, in) weight^T + bias, of each row's expert; bias (experts out), or empty
  void (*grouped_linear)(ExecContext& ctx, Buffer y, Buffer x, Buffer weight, Buffer bias, Buffer offsets,
                         const GroupedDims& dims);
  /// dx (rows, in) := dy (rows, out) weight
  void (*grouped_dx)(ExecContext& ctx, Buffer dx, Buffer dy, Buffer weight, Buffer offsets, const GroupedDims& dims);
  /// dweight (experts out, in), f32 or x's dtype, := dy^T x of each expert's rows + beta * dweight; zeros of none
  void (*grouped_dweight)(ExecContext& ctx, Buffer dweight, Buffer dy, Buffer x, Buffer offsets,
                          const GroupedDims& dims, float beta);
  /// dbias (experts out), f32 or dy's dtype, := sums of each expert's rows of dy + beta * dbias
  void (*grouped_dbias)(ExecContext& ctx, Buffer dbias, Buffer dy, Buffer offsets, const GroupedDims& dims, float beta);
};

}  // namespace zs
