#pragma once

#include "kernels/kernels.h"

/// What every back end's kernels demand of their Buffers before they look at the elements. A violation is an Error(internal) with the
/// numbers, or, where a caller outside the library is likely to bring it about, a UsageError. The stream adds the op's name to both.
namespace zs::checks {

/// From f32 to bf16. The number of elements.
std::int64_t stochastic_cast(const Buffer& out, const Buffer& in, const StochasticRounding& rounding);
/// Packed parts of `elements`, or slices of it (of_slices): the elements of each part.
std::int64_t int8_blocks(const Buffer& packed, const Buffer& elements, int parts, bool of_slices);
/// The number of elements that both have.
std::int64_t same_elems(const Buffer& out, const Buffer& in);
void same_dtype(const Buffer& out, const Buffer& in);
/// out, a and b are alike; their number of elements.
std::int64_t alike(const Buffer& out, const Buffer& a, const Buffer& b);
void same_bytes(const Buffer& out, const Buffer& in);
void row_copy(const Buffer& out, const Buffer& in, const RowCopy& rows);

/// One element, of the dtype that T is.
template <class T>
T* scalar(const char* what, const Buffer& buffer) {
  ZS_CHECK(buffer.elems == 1, "{} has {} elements, expected 1", what, buffer.elems);
  return buffer.as<T>();
}
/// `elems` elements in rows of `width`: how many rows.
std::int64_t rows_of(const Buffer& buffer, std::int64_t width);
void same_as(const char* what, const Buffer& buffer, const Buffer& like);
/// A gradient is f32, or of the dtype of what it comes from.
void gradient(const char* what, const Buffer& gradient, const Buffer& dy);

void matmul(const Buffer& c, const Buffer& a, const Buffer& b, const Buffer& bias, const MatmulDims& dims);
/// Whether it has no terms: then c := beta * c, and there is no bias.
bool is_empty_sum(const Buffer& bias, const MatmulDims& dims);
/// other: what GELU gives, or was taken of.
void matmul_gelu(const MatmulBuffers& product, const Buffer& other, const MatmulDims& dims);

struct TableRows {
  std::int64_t tokens, width, table_rows;
};
TableRows embedding_forward(const Buffer& out, const Buffer& ids, const Buffer& table, const Buffer& positions, std::int64_t time);
TableRows embedding_backward(const Buffer& dtable, const Buffer& ids, const Buffer& dy, std::int64_t width);
TableRows position_backward(const Buffer& dpositions, const Buffer& dy, std::int64_t time, std::int64_t width);
/// The number of rows.
std::int64_t layer_norm_forward(const Buffer& y, const Buffer& mean, const Buffer& rstd, const NormInput& x, const Buffer& gamma,
                                const Buffer& beta);
std::int64_t layer_norm_backward(const Buffer& dx, const Buffer& dgamma, const Buffer& dbeta, const NormGradient& dy, const Buffer& x,
                                 const Buffer& mean, const Buffer& rstd, const Buffer& gamma);
std::int64_t rms_norm_forward(const Buffer& y, const Buffer& rstd, const NormInput& x, const Buffer& gamma);
std::int64_t rms_norm_backward(const Buffer& dx, const Buffer& dgamma, const NormGradient& dy, const Buffer& x, const Buffer& rstd,
                               const Buffer& gamma);
/// y, or dy, and x, or dx: the number of rows.
std::int64_t swiglu(const Buffer& y, const Buffer& x, std::int64_t width);
/// base^(-2 / head_dim): by how much the angle of a pair is less than that of the pair before.
double rotary(const Buffer& out, const Buffer& in, const AttentionDims& dims, const RotaryOptions& options);
void attention(const Buffer& out, const Buffer& lse, const Buffer& qkv, const AttentionDims& dims);
/// The distance of two rows of logits.
std::int64_t cross_entropy(const Buffer& lse, const Buffer& logits, const Buffer& targets, std::int64_t classes);
void cross_entropy_losses(const Buffer& losses, const Buffer& targets);
void cross_entropy_gradient(const Buffer& dlogits, const Buffer& logits, const Buffer& dloss);

/// As long as StepScalars, f32.
void step_scalars(const Buffer& scalars);
void fixed_point_shift(int shift);
void adamw(const Buffer& master, const Buffer& m, const Buffer& v, const Buffer& copy, const Buffer& grad);

}  // namespace zs::checks
