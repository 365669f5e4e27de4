#pragma once

#include <cmath>

#include "kernels/kernels.h"
#include "runtime/base/int8_blocks.h"
#include "runtime/base/usage_error.h"

/// Checks of every back end's kernels on their Buffers before they look at the elements. A violation is an
/// Error(internal) with the numbers, or, where a caller outside the library is likely to bring it about, a UsageError.
/// The stream adds the op's name to both.
namespace zs::checks {

/// The number of elements that both have.
inline std::int64_t same_elems(const Buffer& out, const Buffer& in) {
  ZS_CHECK(out.elems == in.elems, "{} elements out, {} in", out.elems, in.elems);
  return out.elems;
}

/// Checks a cast from f32 to bf16; returns the number of elements.
inline std::int64_t stochastic_cast(const Buffer& out, const Buffer& in, const StochasticRounding& rounding) {
  ZS_CHECK(out.dtype == DType::bf16 && in.dtype == DType::f32, "{} out, {} in, expected bf16 and f32",
           name_of(out.dtype), name_of(in.dtype));
  ZS_CHECK(rounding.first >= 0 && (rounding.run > 0 || in.elems == 0), "runs of {} from {} on", rounding.run,
           rounding.first);
  return same_elems(out, in);
}

/// Packed parts of `elements`, or slices of it (of_slices): the elements of each part.
inline std::int64_t blocks(const Buffer& packed, const Buffer& elements, int parts, bool of_slices,
                           std::int64_t (*bytes)(std::int64_t elems) = packed_bytes) {
  ZS_CHECK(elements.dtype == DType::f32 || elements.dtype == DType::bf16,
           "elements of {} are packed, expected f32 or bf16", name_of(elements.dtype));
  ZS_CHECK(parts > 0 && (!of_slices || elements.elems % parts == 0), "{} elements in {} packed parts", elements.elems,
           parts);
  const std::int64_t elems = of_slices ? elements.elems / parts : elements.elems;
  ZS_CHECK(packed.dtype == DType::u8 && packed.elems == parts * bytes(elems),
           "{} {} for {} packed parts of {} elements, expected {}", packed.elems, name_of(packed.dtype), parts, elems,
           parts * bytes(elems));
  ZS_CHECK(reinterpret_cast<std::uintptr_t>(packed.data) % 16 == 0, "packed elements at {}, expected a multiple of 16",
           packed.data);
  return elems;
}
inline void same_dtype(const Buffer& out, const Buffer& in) {
  ZS_CHECK(out.dtype == in.dtype, "{} out, {} in", name_of(out.dtype), name_of(in.dtype));
}

/// out, a and b are alike; their number of elements.
inline std::int64_t alike(const Buffer& out, const Buffer& a, const Buffer& b) {
  same_dtype(out, a);
  same_dtype(out, b);
  same_elems(out, b);
  return same_elems(out, a);
}

inline void same_bytes(const Buffer& out, const Buffer& in) {
  ZS_CHECK(out.bytes() == in.bytes(), "{} bytes out, {} in", out.bytes(), in.bytes());
}

inline void row_copy(const Buffer& out, const Buffer& in, const RowCopy& rows) {
  same_dtype(out, in);
  const auto extent = [&](std::int64_t stride) { return rows.rows == 0 ? 0 : (rows.rows - 1) * stride + rows.run; };
  ZS_CHECK(
      rows.rows >= 0 && rows.run >= 0 && (rows.rows < 2 || (rows.out_stride >= rows.run && rows.in_stride >= rows.run)),
      "{} rows of {}, {} apart out and {} in", rows.rows, rows.run, rows.out_stride, rows.in_stride);
  ZS_CHECK(out.elems == extent(rows.out_stride) && in.elems == extent(rows.in_stride),
           "{} rows of {}, {} apart in {} elements out, {} apart in {} in", rows.rows, rows.run, rows.out_stride,
           out.elems, rows.in_stride, in.elems);
}

/// One element, of the dtype that T is.
template <class T>
T* scalar(const char* what, const Buffer& buffer) {
  ZS_CHECK(buffer.elems == 1, "{} has {} elements, expected 1", what, buffer.elems);
  return buffer.as<T>();
}
/// `elems` elements in rows of `width`: how many rows.
inline std::int64_t rows_of(const Buffer& buffer, std::int64_t width) {
  ZS_CHECK(width > 0 && buffer.elems % width == 0, "{} elements do not make rows of {}", buffer.elems, width);
  return buffer.elems / width;
}

inline void same_as(const char* what, const Buffer& buffer, const Buffer& like) {
  ZS_CHECK(buffer.elems == like.elems && buffer.dtype == like.dtype, "{} is {} x {}, expected {} x {}", what,
           buffer.elems, name_of(buffer.dtype), like.elems, name_of(like.dtype));
}

/// A gradient is f32, or of the dtype of what it comes from.
inline void gradient(const char* what, const Buffer& gradient, const Buffer& dy) {
  ZS_CHECK(gradient.dtype == DType::f32 || gradient.dtype == dy.dtype, "{} is {}, expected f32 or {}", what,
           name_of(gradient.dtype), name_of(dy.dtype));
}

inline void matmul(const Buffer& c, const Buffer& a, const Buffer& b, const Buffer& bias, const MatmulDims& d) {
  ZS_CHECK(d.m >= 0 && d.n >= 0 && d.k >= 0, "a product of ({}, {}) and ({}, {})", d.m, d.k, d.k, d.n);
  ZS_CHECK(d.beta == 0.0f || d.beta == 1.0f, "beta is {}, expected 0 or 1", d.beta);
  ZS_CHECK(d.batch >= 1 && (d.batch == 1 || bias.empty()), "a batch of {}, {} a bias", d.batch,
           bias.empty() ? "without" : "with");
  ZS_CHECK(a.elems == d.batch * d.m * d.k && b.elems == d.batch * d.k * d.n && c.elems == d.batch * d.m * d.n,
           "a {}, b {}, c {} elements for m {}, n {}, k {}, batch {}", a.elems, b.elems, c.elems, d.m, d.n, d.k,
           d.batch);
  if (a.dtype != b.dtype || (c.dtype != a.dtype && c.dtype != DType::f32))
    throw UsageError(fmt::format("a product of {} ({}, {}) and {} ({}, {}) into {}", name_of(a.dtype), d.m, d.k,
                                 name_of(b.dtype), d.k, d.n, name_of(c.dtype)),
                     "both operands have one dtype, and the result has it too or is f32: cast one of them");
  ZS_CHECK(bias.empty() || (bias.elems == d.n && (bias.dtype == c.dtype || bias.dtype == a.dtype)),
           "bias {} x {} for {} columns of {}", bias.elems, name_of(bias.dtype), d.n, name_of(c.dtype));
}

/// True if the product has no terms: then c := beta * c, and there is no bias.
inline bool is_empty_sum(const Buffer& bias, const MatmulDims& d) {
  if (d.k > 0) return false;
  ZS_CHECK(bias.empty(), "a bias of {} elements for a product of ({}, 0) and (0, {})", bias.elems, d.m, d.n);
  return true;
}

/// other: what GELU gives, or was taken of.
inline void matmul_gelu(const MatmulBuffers& product, const Buffer& other, const MatmulDims& dims) {
  matmul(product.c, product.a, product.b, product.bias, dims);
  ZS_CHECK(dims.beta == 0.0f && dims.batch == 1, "beta is {}, batch {} beside GELU, expected 0 and 1", dims.beta,
           dims.batch);
  same_as("c", product.c, other);
  same_dtype(product.c, product.a);
}

inline void require(const char* what, const Buffer& buffer, DType dtype, const char* what_to_do) {
  if (buffer.dtype == dtype) return;
  throw UsageError(fmt::format("{} are {}, expected {}", what, name_of(buffer.dtype), name_of(dtype)), what_to_do);
}

inline constexpr const char* kMakeIds = "make them by Tensor::from_host from std::vector<std::int32_t>";

struct TableRows {
  std::int64_t tokens, width, table_rows;
};
inline TableRows embedding_forward(const Buffer& out, const Buffer& ids, const Buffer& table, const Buffer& positions,
                                   std::int64_t time) {
  require("ids", ids, DType::i32, kMakeIds);
  ZS_CHECK(out.elems % ids.elems == 0, "{} elements for {} tokens", out.elems, ids.elems);
  const std::int64_t width = out.elems / ids.elems;
  ZS_CHECK(out.dtype == table.dtype && (positions.empty() || positions.dtype == table.dtype),
           "out is {}, table {}, positions {}", name_of(out.dtype), name_of(table.dtype), name_of(positions.dtype));
  ZS_CHECK(positions.empty() || (time > 0 && positions.elems >= time * width),
           "{} elements of positions for {} steps of width {}", positions.elems, time, width);
  return {ids.elems, width, rows_of(table, width)};
}

inline TableRows embedding_backward(const Buffer& dtable, const Buffer& ids, const Buffer& dy, std::int64_t width) {
  require("ids", ids, DType::i32, kMakeIds);
  const TableRows rows{rows_of(dy, width), width, rows_of(dtable, width)};
  ZS_CHECK(rows.tokens == ids.elems, "{} rows of gradients for {} tokens", rows.tokens, ids.elems);
  gradient("dtable", dtable, dy);
  return rows;
}

inline TableRows position_backward(const Buffer& dpositions, const Buffer& dy, std::int64_t time, std::int64_t width) {
  const TableRows rows{rows_of(dy, width), width, rows_of(dpositions, width)};
  ZS_CHECK((time > 0 || rows.tokens == 0) && time <= rows.table_rows, "{} steps for {} positions", time,
           rows.table_rows);
  gradient("dpositions", dpositions, dy);
  return rows;
}

/// The number of rows.
inline std::int64_t norm_input(const Buffer& y, const NormInput& in, std::int64_t width) {
  same_as("y", y, in.x);
  if (!in.residual.empty()) {
    same_as("residual", in.residual, in.x);
    same_as("sum", in.sum, in.x);
  }
  return rows_of(in.x, width);
}

inline void norm_gradient(const Buffer& dx, const NormGradient& gradient, const Buffer& x) {
  same_as("dx", dx, x);
  same_as("dy", gradient.dy, x);
  if (!gradient.skip.empty()) same_as("skip", gradient.skip, x);
}

/// The number of rows.
inline std::int64_t layer_norm_forward(const Buffer& y, const Buffer& mean, const Buffer& rstd, const NormInput& x,
                                       const Buffer& gamma, const Buffer& beta) {
  const std::int64_t width = gamma.elems, rows = norm_input(y, x, width);
  ZS_CHECK(mean.elems == rows && rstd.elems == rows && beta.elems == width,
           "mean {}, rstd {}, beta {} for {} rows of {}", mean.elems, rstd.elems, beta.elems, rows, width);
  return rows;
}

inline std::int64_t layer_norm_backward(const Buffer& dx, const Buffer& dgamma, const Buffer& dbeta,
                                        const NormGradient& dy, const Buffer& x, const Buffer& mean, const Buffer& rstd,
                                        const Buffer& gamma) {
  const std::int64_t width = gamma.elems, rows = rows_of(x, width);
  norm_gradient(dx, dy, x);
  gradient("dgamma", dgamma, x);
  gradient("dbeta", dbeta, x);
  ZS_CHECK(mean.elems == rows && rstd.elems == rows && dgamma.elems == width && dbeta.elems == width,
           "mean {}, rstd {}, dgamma {}, dbeta {} for {} rows of {}", mean.elems, rstd.elems, dgamma.elems, dbeta.elems,
           rows, width);
  return rows;
}

inline std::int64_t rms_norm_forward(const Buffer& y, const Buffer& rstd, const NormInput& x, const Buffer& gamma) {
  const std::int64_t width = gamma.elems, rows = norm_input(y, x, width);
  ZS_CHECK(rstd.elems == rows, "rstd {} for {} rows of {}", rstd.elems, rows, width);
  return rows;
}

inline std::int64_t rms_norm_backward(const Buffer& dx, const Buffer& dgamma, const NormGradient& dy, const Buffer& x,
                                      const Buffer& rstd, const Buffer& gamma) {
  const std::int64_t rows = rms_norm_forward(dx, rstd, x, gamma);
  norm_gradient(dx, dy, x);
  gradient("dgamma", dgamma, x);
  ZS_CHECK(dgamma.elems == gamma.elems, "dgamma {} for rows of {}", dgamma.elems, gamma.elems);
  return rows;
}

/// y, or dy, and x, or dx: the number of rows.
inline std::int64_t gated(const Buffer& y, const Buffer& x, std::int64_t width) {
  const std::int64_t rows = rows_of(y, width);
  same_dtype(y, x);
  ZS_CHECK(x.elems == 2 * y.elems, "{} elements in for {} rows of {}, expected {}", x.elems, rows, width, 2 * y.elems);
  return rows;
}

inline std::int64_t tokens_of(const AttentionDims& dims) {
  const std::int64_t tokens = dims.batch * dims.time;
  ZS_CHECK(dims.batch >= 0 && dims.time >= 0 && dims.heads > 0 && dims.head_dim > 0,
           "attention over batch {}, time {}, heads {}, head_dim {}", dims.batch, dims.time, dims.heads, dims.head_dim);
  ZS_CHECK(dims.kv_heads >= 0 && dims.heads % kv_heads_of(dims) == 0, "{} heads share {} key and value heads",
           dims.heads, dims.kv_heads);
  ZS_CHECK(dims.window >= 0, "a window of {} keys", dims.window);
  return tokens;
}

/// base^(-2 / head_dim): by how much the angle of a pair is less than that of the pair before.
inline double rotary(const Buffer& out, const Buffer& in, const AttentionDims& dims, const RotaryOptions& options) {
  const std::int64_t elems = tokens_of(dims) * qkv_width_of(dims);
  same_as("out", out, in);
  ZS_CHECK(in.elems == elems, "{} elements of qkv, expected {}", in.elems, elems);
  ZS_CHECK(dims.head_dim % 2 == 0 && options.base >= 1 && options.first >= 0,
           "rotary positions for head_dim {}, base {}, from {} on", dims.head_dim, options.base, options.first);
  const RotaryScaling& scaling = options.scaling;
  const bool has_ramp = scaling.last == 0 || (scaling.first >= 0 && scaling.first < scaling.last);
  ZS_CHECK(has_ramp && scaling.factor >= 1 && scaling.context >= 0 && scaling.low < scaling.high,
           "rotary positions scaled by {} between {} and {} turns of {} positions, pairs {} to {}", scaling.factor,
           scaling.low, scaling.high, scaling.context, scaling.first, scaling.last);
  return std::pow(options.base, -2.0 / static_cast<double>(dims.head_dim));
}

inline void attention(const Buffer& out, const Buffer& lse, const Buffer& qkv, const AttentionDims& dims) {
  const std::int64_t tokens = tokens_of(dims), width = dims.heads * dims.head_dim;
  ZS_CHECK(qkv.elems == tokens * qkv_width_of(dims) && out.elems == tokens * width &&
               lse.elems == tokens * dims.heads && out.dtype == qkv.dtype,
           "qkv {} x {}, out {} x {}, lse {} for {} tokens, {} heads of {}, {} of keys", qkv.elems, name_of(qkv.dtype),
           out.elems, name_of(out.dtype), lse.elems, tokens, dims.heads, dims.head_dim, kv_heads_of(dims));
}

inline void attention_cached(const Buffer& out, const Buffer& scores, const Buffer& qkv, const Buffer& cache,
                             const AttentionDims& dims, std::int64_t first) {
  const std::int64_t tokens = tokens_of(dims), end = first + tokens, row = 2 * kv_heads_of(dims) * dims.head_dim;
  ZS_CHECK(dims.batch == 1 && first >= 0 && qkv.elems == tokens * qkv_width_of(dims) &&
               out.elems == tokens * dims.heads * dims.head_dim,
           "qkv {}, out {} for {} tokens of {} sequences behind {} others", qkv.elems, out.elems, dims.time, dims.batch,
           first);
  ZS_CHECK(out.dtype == qkv.dtype && cache.dtype == qkv.dtype && cache.elems % row == 0 && cache.elems >= end * row,
           "a cache of {} x {} for {} tokens of {} elements of {}", cache.elems, name_of(cache.dtype), end, row,
           name_of(qkv.dtype));
  ZS_CHECK(scores.dtype == DType::f32 && scores.elems >= tokens * dims.heads * (end + dims.head_dim),
           "{} x {} to work in", scores.elems, name_of(scores.dtype));
}

/// The distance of two rows of logits.
inline std::int64_t logits_of_targets(const Buffer& logits, const Buffer& targets, std::int64_t classes) {
  const std::int64_t rows = targets.elems;
  require("targets", targets, DType::i32, kMakeIds);
  ZS_CHECK(rows > 0 && logits.elems % rows == 0, "{} logits for {} targets", logits.elems, rows);
  const std::int64_t stride = logits.elems / rows;
  ZS_CHECK(classes >= 0 && classes <= stride, "{} classes in rows of {}", classes, stride);
  return stride;
}

/// Checks a cross entropy as above, of f32.
inline std::int64_t cross_entropy(const Buffer& lse, const Buffer& logits, const Buffer& targets,
                                  std::int64_t classes) {
  require("logits", logits, DType::f32, "cast them: cast(logits, DType::f32)");
  require("log-sum-exps", lse, DType::f32, "make the tensor that takes them f32");
  ZS_CHECK(lse.elems == targets.elems, "{} lse for {} targets", lse.elems, targets.elems);
  return logits_of_targets(logits, targets, classes);
}

inline void cross_entropy_losses(const Buffer& losses, const Buffer& targets) {
  require("losses", losses, DType::f32, "make the tensor that takes them f32");
  ZS_CHECK(losses.elems == targets.elems, "{} losses for {} rows", losses.elems, targets.elems);
}

inline void cross_entropy_gradient(const Buffer& dlogits, const Buffer& logits, const Buffer& dloss) {
  ZS_CHECK(dlogits.elems == logits.elems && dloss.elems == 1, "{} dlogits for {} logits, {} dloss", dlogits.elems,
           logits.elems, dloss.elems);
}

/// Checks scalars: f32, as long as StepScalars.
inline void step_scalars(const Buffer& scalars) {
  ZS_CHECK(scalars.bytes() == sizeof(StepScalars) && scalars.dtype == DType::f32,
           "{} bytes of {} as scalars, expected {} of f32", scalars.bytes(), name_of(scalars.dtype),
           sizeof(StepScalars));
}

/// Checks counts: f64, as long as UpdateCounts; how many they are.
inline std::int64_t update_counts(const Buffer& counts) {
  constexpr std::int64_t kBytes = sizeof(UpdateCount);
  ZS_CHECK(counts.dtype == DType::f64 && counts.bytes() % kBytes == 0, "{} bytes of {} as counts of updates",
           counts.bytes(), name_of(counts.dtype));
  return counts.bytes() / kBytes;
}

inline void fixed_point_shift(int shift) {
  ZS_CHECK(shift >= 0 && shift <= 60, "a shift of {}, expected 0 to 60", shift);
}

/// m may be empty where it is not needed; v is where it is not.
inline void update_range(const UpdateRange& range, const UpdateRule& rule) {
  bool needs_m = true, needs_v = true;
  with_update_rule(rule,
                   [&]<class Options>(const Options&) { needs_m = Options::kNeedsM, needs_v = Options::kNeedsV; });
  const std::int64_t elems = range.master.elems;
  ZS_CHECK((range.m.elems == elems || (range.m.empty() && !needs_m)) && range.v.elems == (needs_v ? elems : 0) &&
               range.grad.elems == elems,
           "master {}, m {}, v {}, grad {} elements", elems, range.m.elems, range.v.elems, range.grad.elems);
  ZS_CHECK(range.copy.empty() || (range.copy.elems == elems && range.copy.dtype == DType::bf16),
           "copy {} x {} of {} elements", range.copy.elems, name_of(range.copy.dtype), elems);
  step_scalars(range.scalars);
}

inline void blockwise_adamw(const BlockwiseAdamW& of) {
  const std::int64_t elems = of.master.elems;
  update_range({of.master, of.grad, of.copy, of.m, of.v, of.scalars, of.weight_decay}, AdamWOptions{});
  ZS_CHECK(of.m.dtype == DType::u8 && of.v.dtype == DType::u8, "m {}, v {}, expected u8", name_of(of.m.dtype),
           name_of(of.v.dtype));
  ZS_CHECK(elems > 0 && of.part.run > 0 && elems % of.part.run == 0 && of.part.first >= 0 &&
               (elems == of.part.run || of.part.stride >= of.part.run),
           "{} elements in runs of {}, {} apart from {} on", elems, of.part.run, of.part.stride, of.part.first);
  for (const Buffer* scales : {&of.m_scales, &of.v_scales, &of.new_m_scales, &of.new_v_scales})
    ZS_CHECK(scales->elems == blocks_of(of.part, elems), "{} scales of {} blocks", scales->elems,
             blocks_of(of.part, elems));
}

/// True if a norm's power, which must be above 0, is infinite.
inline bool is_max_norm(float power) {
  ZS_CHECK(power > 0, "a norm of power {}, expected above 0", power);
  return std::isinf(power);
}

}  // namespace zs::checks
