#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/accumulators.h"
#include "kernels/dynamic_code.h"
#include "kernels/expert_kernels.h"
#include "kernels/general_args.h"
#include "kernels/no_target.h"
#include "kernels/rotary_angle.h"
#include "kernels/sink_kernels.h"
#include "kernels/update_rules.h"
#include "runtime/base/buffer.h"
#include "runtime/base/shape.h"
#include "runtime/device/stream.h"

namespace zs {

/// A product C (m, n) := A' (m, k) * B' (k, n) + beta * C [+ bias (n)], all row-major and dense. A' is `a`, or its
/// transpose when `transpose_a` (then `a` is stored (k, m)); likewise B'. beta is 0 or 1. a and b have one dtype; c is
/// f32 or that dtype; the sum is carried in f32. Any size may be 0: c := beta * c where k is, and then there is no
/// bias. Of a batch each of a, b and c is so many matrices, one after the other; only `matmul` takes one.
struct MatmulDims {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  float beta = 0;
  std::int64_t batch = 1;
};

/// Buffers of a product; bias may be empty.
struct MatmulBuffers {
  Buffer c, a, b, bias;
};

/// q of (batch, time, heads, head_dim), k and v of (batch, time, kv_heads, head_dim), interleaved in one buffer qkv
/// (batch, time, heads + 2 kv_heads, head_dim): a token's queries, then its keys, then its values.
struct AttentionDims {
  std::int64_t batch, time, heads, head_dim;
  /// Ainslie et al. 2023 (grouped queries): each key and value head serves heads / kv_heads query heads, neighbours. 0:
  /// as many as heads.
  std::int64_t kv_heads = 0;
  /// Beltagy et al. 2020 (sliding window): a query sees so many keys, the last one its own token's. 0: all up to that.
  std::int64_t window = 0;
};
/// Keys that a query sees at most.
static constexpr std::int64_t window_of(const AttentionDims& dims) {
  return dims.window > 0 && dims.window < dims.time ? dims.window : dims.time;
}
static constexpr std::int64_t kv_heads_of(const AttentionDims& dims) {
  return dims.kv_heads > 0 ? dims.kv_heads : dims.heads;
}
/// Elements of a token's row of qkv.
static constexpr std::int64_t qkv_width_of(const AttentionDims& dims) {
  return (dims.heads + 2 * kv_heads_of(dims)) * dims.head_dim;
}

struct RotaryOptions {
  double base = 10000;
  RotaryScaling scaling = {};
  bool is_inverse = false;  ///< turns back: the gradient
  std::int64_t first = 0;   ///< the position of each sequence's first token
};

/// One or many, for as long as a call takes.
template <class T>
class OneOrMany {
 public:
  OneOrMany(const T& one) : all_(&one, 1) {}             // NOLINT(google-explicit-constructor): one is that
  OneOrMany(const std::vector<T>& many) : all_(many) {}  // NOLINT(google-explicit-constructor): so are many
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::span<const T> all_;
};
/// Buffers that a sum takes together.
using SumParts = OneOrMany<Buffer>;

/// Elements of one parameter that an optimizer updates: f32 (n).
struct UpdateRange {
  Buffer master, grad;
  Buffer copy = {};       ///< bf16 (n): becomes the new master; empty: none
  Buffer m = {}, v = {};  ///< as many moments as the optimizer has, in this order
  Buffer scalars = {};    ///< as StepScalars
  float weight_decay = 0;
};

/// A part of a parameter, at least one element, and AdamW's moments of it as dynamic codes (kernels/dynamic_code.h): an
/// element's moment is its code's value times the scale of its block.
struct BlockwiseAdamW {
  Buffer master, copy, grad, scalars;  ///< here and of weight_decay: as UpdateRange has them
  Buffer m, v;                         ///< u8 (n): signed codes, unsigned ones
  Buffer m_scales, v_scales;           ///< f32 (blocks_of): of the blocks that the part has elements of
  Buffer new_m_scales, new_v_scales;   ///< scales of these blocks after the step
  ElementRuns part;
  float weight_decay;
};

/// Elements of a parameter that a part of it has, as ElementRuns says it. key: of the parameter's random numbers.
struct StochasticRounding {
  std::uint64_t key;
  std::int64_t first, run, stride;
};

/// `rows` rows of `run` elements, which begin so many elements apart.
struct RowCopy {
  std::int64_t rows, run, out_stride, in_stride;
};

/// Input of a norm: x, or, with a residual, sum := x + residual, written in the same pass. All have x's dtype: the sum
/// is rounded to it before it is normalised. sum may be x or residual.
struct NormInput {
  Buffer x, residual, sum;
  NormInput(Buffer input) : x(input) {}  // NOLINT(google-explicit-constructor): x alone is one
  NormInput(Buffer input, Buffer added, Buffer total) : x(input), residual(added), sum(total) {}
};

/// Factors of an RMS norm: `offset` + `weight`, added in f32 (Gemma's have the offset 1, so that weights are about 0).
struct NormFactors {
  Buffer weight;
  float offset = 0;
  NormFactors(Buffer factors) : weight(factors) {}  // NOLINT(google-explicit-constructor): weights alone are some
  NormFactors(Buffer factors, float added) : weight(factors), offset(added) {}
};

/// Gradients that come back to a norm: dy, and, with it, `skip`, which comes back to the norm's input past it and has
/// x's dtype: it is added to what the norm passes on, rounded to that dtype first, in the same pass.
struct NormGradient {
  Buffer dy, skip;
  NormGradient(Buffer gradient) : dy(gradient) {}  // NOLINT(google-explicit-constructor): dy alone is one
  NormGradient(Buffer gradient, Buffer past) : dy(gradient), skip(past) {}
};

enum class GeluKind : std::uint8_t { tanh, erf };

/// The working memory (ExecContext::scratch) that kernels take, in bytes: what an op that runs one declares
/// (OpInfo::scratch_bytes). It follows from these arguments and from the instruction set alone. threads: of the stream.
struct KernelScratch {
  std::int64_t (*matmul)(const MatmulDims& dims);
  std::int64_t (*bias_backward)(std::int64_t rows, std::int64_t width);
  /// Scratch of layer_norm, and of rms_norm too.
  std::int64_t (*layer_norm_forward)(std::int64_t width);
  std::int64_t (*layer_norm_backward)(std::int64_t rows, std::int64_t width);
  /// Forward or backward.
  std::int64_t (*attention)(int threads, const AttentionDims& dims);
  std::int64_t (*rotary)(int threads, const AttentionDims& dims);
  std::int64_t (*order_lines)(int threads, const LineDims& dims);
};

/// Every kernel of a back end. Buffers are dense; "x" is f32 or bf16 unless said otherwise, outputs have the dtype of
/// their input unless said otherwise, arithmetic is f32. Rows and batches may be none. All are deterministic: results
/// do not depend on the number of threads. None allocates tensors; all run on the stream's thread with ctx.threads()
/// threads. Sums run over fixed interleaved lanes and fixed blocks of rows, folded in a fixed order, the same for every
/// instruction set: apart from products, attention, gelu, swiglu and cross entropy, which fuse multiplication and
/// addition where the processor can, all instruction sets give the same bits. Outputs of more than 1 MiB that no input
/// shares are stored past the caches, but for a norm's sum in bf16. What the library keeps for each shape of a product
/// lives in ctx.state, and so do f32 copies of bf16 operands where the processor has no such products. A wrong size,
/// dtype or index is an Error(internal) that names it.
struct KernelTable {
  KernelScratch scratch;
  ExpertKernels experts;
  SinkKernels sinks;

  /// fills with zero bytes / copies bytes
  void (*zero)(ExecContext& ctx, Buffer out);
  void (*copy)(ExecContext& ctx, Buffer out, Buffer in);
  /// out := as many bytes of the host's memory, which may change once this returns
  void (*upload)(ExecContext& ctx, Buffer out, const void* in);
  /// `out`, of the host's memory := the bytes of `in`; they are there when the stream is known to have passed it
  void (*download)(ExecContext& ctx, void* out, Buffer in);
  /// out[r * out_stride + i] := in[r * in_stride + i] for i < run, r < rows; one dtype, no overlap. Both buffers end
  /// with the last row; what lies between rows of out stays as it is.
  void (*copy_rows)(ExecContext& ctx, Buffer out, Buffer in, const RowCopy& rows);
  /// out := in, between f32 and bf16 (round to nearest even)
  void (*cast)(ExecContext& ctx, Buffer out, Buffer in);
  /// out bf16 (n) := in f32 (n), rounded up or down at random (Gupta et al. 2015), so that the mean is exact. An
  /// element's random number follows from the key, its index in its parameter and its own bits: any cut, and any back
  /// end, gives the same bits. NaN stays NaN.
  void (*stochastic_cast)(ExecContext& ctx, Buffer out, Buffer in, const StochasticRounding& rounding);
  /// packed u8 (slices * packed_bytes(n)) := elements (slices, n), each slice by itself, as runtime/base/int8_blocks.h
  /// has it; here and below `packed` begins at a multiple of 16
  void (*pack_int8)(ExecContext& ctx, Buffer packed, Buffer elements, int slices);
  /// elements (slices, n) := packed
  void (*unpack_int8)(ExecContext& ctx, Buffer elements, Buffer packed, int slices);
  /// pack_int8 and unpack_int8 with elements in e4m3 (kernels/fp8.h), the largest magnitude of a block being 448 times
  /// its scale: a decoded element differs from the original by at most 1/16 of it or 1/450,000 of the largest, and by
  /// the rounding of f32 and of its own dtype
  void (*pack_fp8)(ExecContext& ctx, Buffer packed, Buffer elements, int slices);
  void (*unpack_fp8)(ExecContext& ctx, Buffer elements, Buffer packed, int slices);
  /// elements (slices, n), f32 or bf16 := packed u8 (slices * nf4_bytes(n)), as runtime/base/nf4_blocks.h has it
  void (*unpack_nf4)(ExecContext& ctx, Buffer elements, Buffer packed, int slices);
  /// out (n) := [out +] the sum of so many parts, packed (parts * packed_bytes(n)), in their order
  void (*reduce_int8)(ExecContext& ctx, Buffer out, Buffer packed, int parts, bool accumulate);
  /// out := a + b (residual); out may be a or b
  void (*add)(ExecContext& ctx, Buffer out, Buffer a, Buffer b);
  /// out := in * factor; out may be in
  void (*scale)(ExecContext& ctx, Buffer out, Buffer in, float factor);
  /// out (n) += in (n), any mix of f32 and bf16
  void (*accumulate)(ExecContext& ctx, Buffer out, Buffer in);

  void (*map)(ExecContext& ctx, const Map& map);
  void (*reduce)(ExecContext& ctx, const Reduce& reduce);
  /// y := x[ids], of one dtype, f32, bf16 or i32
  void (*take_lines)(ExecContext& ctx, Buffer y, Buffer x, Buffer ids, const LineDims& dims);
  /// x f32 := zeros, then x[ids] += y (f32 or bf16) in order of the count
  void (*add_lines)(ExecContext& ctx, Buffer x, Buffer y, Buffer ids, const LineDims& dims);
  /// ids i32 (outer, count, inner) := where the first `count` elements, in order, of each line of x (outer, lines,
  /// inner), f32, bf16 or i32, are: from the smallest on, or from the largest on. Equal ones stay in their order; NaN
  /// is the largest. A GPU compares each element with all of its line.
  void (*order_lines)(ExecContext& ctx, Buffer ids, Buffer x, const LineDims& dims, bool is_descending);
  /// y (outer, lines, inner) := sums of each line's elements of x, alike, f32, bf16 or i32, up to this one, or, if
  /// is_backward, from this one on. Carried in f64, one after the other; i32 wraps around.
  void (*sum_lines)(ExecContext& ctx, Buffer y, Buffer x, const LineDims& dims, bool is_backward);
  /// Srivastava et al. 2014: out := in / (1 - probability), or 0 where the mask drops the element; out may be in
  void (*dropout)(ExecContext& ctx, Buffer out, Buffer in, const DropoutMask& mask);

  /// see MatmulDims; bias is empty or (n), of c's, or a's, dtype
  void (*matmul)(ExecContext& ctx, Buffer c, Buffer a, Buffer b, Buffer bias, const MatmulDims& dims);
  /// matmul, and y (m, n) := gelu, by tanh, of its result; beta is 0, c and y have a's dtype. y may be of the sum
  /// before that is rounded to c. Here and in the next kernel the scratch is matmul's. Both are null in a back end that
  /// has no such products.
  void (*matmul_gelu)(ExecContext& ctx, Buffer y, const MatmulBuffers& product, const MatmulDims& dims);
  /// c := product * gelu'(x), by tanh; x (m, n); beta is 0, there is no bias, c and x have a's dtype. The product may
  /// be rounded to that dtype or not.
  void (*matmul_gelu_backward)(ExecContext& ctx, Buffer x, const MatmulBuffers& product, const MatmulDims& dims);
  /// dbias (cols) := sum over rows of dy (rows, cols) + beta * dbias; dbias f32 or dy's dtype
  void (*bias_backward)(ExecContext& ctx, Buffer dbias, Buffer dy, float beta);

  /// out (tokens, width) := table[ids] [+ positions[t mod time]]; ids i32 (tokens); positions empty or (>= time, width)
  void (*embedding_forward)(ExecContext& ctx, Buffer out, Buffer ids, Buffer table, Buffer positions,
                            std::int64_t time);
  /// dtable (rows, width) := beta * dtable, then dtable[ids[i]] += dy[i] in order of i, but where ids[i] is `padding`
  /// (below 0: nowhere); dtable f32 or dy's dtype
  void (*embedding_backward)(ExecContext& ctx, Buffer dtable, Buffer ids, Buffer dy, std::int64_t width, float beta,
                             std::int32_t padding);
  /// dpositions (rows, width) := beta * dpositions, then dpositions[i mod time] += dy[i] in order of i
  void (*position_backward)(ExecContext& ctx, Buffer dpositions, Buffer dy, std::int64_t time, std::int64_t width,
                            float beta);

  /// Ba, Kiros, Hinton 2016: y = (x - mean) * rstd * gamma + beta over the last dim (width); mean, rstd f32 (rows);
  /// gamma and beta each f32 or bf16, whatever x is
  void (*layer_norm_forward)(ExecContext& ctx, Buffer y, Buffer mean, Buffer rstd, NormInput x, Buffer gamma,
                             Buffer beta, float eps);
  /// dx (x's dtype; may be dy or skip); dgamma, dbeta (width; f32 or x's dtype) := their sums over rows + grad_beta *
  /// what they hold
  void (*layer_norm_backward)(ExecContext& ctx, Buffer dx, Buffer dgamma, Buffer dbeta, NormGradient dy, Buffer x,
                              Buffer mean, Buffer rstd, Buffer gamma, float grad_beta);

  /// Zhang, Sennrich 2019: y = x * rstd * gamma over the last dim (width), rstd = 1 / sqrt(mean(x^2) + eps), f32
  /// (rows); gamma's weight f32 or bf16, whatever x is
  void (*rms_norm_forward)(ExecContext& ctx, Buffer y, Buffer rstd, NormInput x, NormFactors gamma, float eps);
  /// dx (x's dtype; may be dy or skip); dgamma (width; f32 or x's dtype) := its sums over rows + grad_beta * what it
  /// holds
  void (*rms_norm_backward)(ExecContext& ctx, Buffer dx, Buffer dgamma, NormGradient dy, Buffer x, Buffer rstd,
                            NormFactors gamma, float grad_beta);

  /// Hendrycks, Gimpel 2016. tanh: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); erf: 0.5 x (1 + erf(x / sqrt 2))
  void (*gelu_forward)(ExecContext& ctx, Buffer y, Buffer x, GeluKind kind);
  /// dx := dy * gelu'(x); dx may be dy
  void (*gelu_backward)(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, GeluKind kind);

  /// Shazeer 2020: y (rows, width) := silu(a) * b, silu(a) = a / (1 + e^-a), where a row of x (rows, 2 width) is a,
  /// then b
  void (*swiglu_forward)(ExecContext& ctx, Buffer y, Buffer x, std::int64_t width);
  /// dx (rows, 2 width) := dy * b * silu'(a), then dy * silu(a)
  void (*swiglu_backward)(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, std::int64_t width);
  /// swiglu with gelu, by tanh, in place of silu (Shazeer 2020)
  void (*geglu_forward)(ExecContext& ctx, Buffer y, Buffer x, std::int64_t width);
  void (*geglu_backward)(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, std::int64_t width);

  /// Su et al. 2021: out := qkv `in` with the queries and keys of each sequence's token at position t turned; values
  /// are copied. Elements i and i + head_dim / 2 of a head, i < head_dim / 2, are a pair (halves, as in Llama's
  /// published weights, not neighbours as in the paper) and turn by the angle t * base^(-2 i / head_dim), scaled as
  /// RotaryScaling says. Angles, cosines and sines are computed in f64, the same bits on every back end, and rounded to
  /// f32; the turn is f32. head_dim is even; out may be in.
  void (*rotary)(ExecContext& ctx, Buffer out, Buffer in, const AttentionDims& dims, const RotaryOptions& options);

  /// Causal softmax(q k^T / sqrt(head_dim)) v over each query's window, by an online softmax (Dao et al. 2022). out
  /// (batch, time, heads, head_dim); lse f32 (batch, heads, time): log-sum-exp of each row's scaled scores
  void (*attention_forward)(ExecContext& ctx, Buffer out, Buffer lse, Buffer qkv, const AttentionDims& dims);
  /// dqkv (as qkv) from dout, recomputing the probabilities block by block from lse
  void (*attention_backward)(ExecContext& ctx, Buffer dqkv, Buffer dout, Buffer out, Buffer qkv, Buffer lse,
                             const AttentionDims& dims);
  /// attention_forward for the last dims.time tokens of one sequence, at positions `first` on, whose keys and values
  /// are cached: out (time, heads, head_dim) from the queries of qkv. A row of cache (first + time or more, 2 kv_heads
  /// head_dim) is a token's keys, then its values. scores: f32 (time heads, first + time + head_dim) or more, to work
  /// in.
  void (*attention_cached)(ExecContext& ctx, Buffer out, Buffer scores, Buffer qkv, Buffer cache,
                           const AttentionDims& dims, std::int64_t first);

  /// Rows of logits f32 (rows, stride) of which the first `classes` columns count; targets i32 (rows), kNoTarget for
  /// none of them. losses f32 (rows) := logsumexp(row) - row[target], without a target logsumexp(row); lse f32 (rows)
  void (*cross_entropy_forward)(ExecContext& ctx, Buffer losses, Buffer lse, Buffer logits, Buffer targets,
                                std::int64_t classes);
  /// dlogits (rows, stride; f32 or bf16; may be logits when f32) := (exp(logit - lse) - [col == target]) * factor *
  /// dloss[0], zero in the masked columns; dloss f32 (1); targets as above
  void (*cross_entropy_backward)(ExecContext& ctx, Buffer dlogits, Buffer logits, Buffer lse, Buffer targets,
                                 Buffer dloss, std::int64_t classes, float factor);
  /// Both in one reading of memory: losses as cross_entropy_forward has them, of logits f32 or bf16, which then hold
  /// dlogits; each row has a target. On GPUs; null: the two above do it.
  void (*cross_entropy_in_place)(ExecContext& ctx, Buffer losses, Buffer logits, Buffer targets, Buffer dloss,
                                 std::int64_t classes, float factor);
  /// out f32 (1) := factor * sum of in f32 (n), carried in f64 in a fixed order
  void (*sum)(ExecContext& ctx, Buffer out, Buffer in, float factor);

  /// Sums of all parts (f32 or bf16), of which one buffer is one; a GPU takes many in one launch.
  /// out f64 (1) += sum of squares of in, carried in f64
  void (*squared_norm)(ExecContext& ctx, Buffer out, const SumParts& in);
  /// Order-free squared norm, part 1: out i32 (1) := max(out, largest binary exponent of any finite x != 0 in `in`);
  /// INT32_MAX when any is not finite. out starts at INT32_MIN.
  void (*max_exponent)(ExecContext& ctx, Buffer out, const SumParts& in);
  /// part 2: out i64 (1) += sum of round(x^2 * 2^(shift - 2 e)) where e = exponent[0], so that any order of any cut of
  /// the same elements gives the same integer. `shift` leaves room for the number of elements: x^2 < 2^(2 e + 2).
  void (*fixed_point_squares)(ExecContext& ctx, Buffer out, const SumParts& in, Buffer exponent, int shift);
  /// Another norm than that of squares, part 1: out i32 (1) := max(out, the bits of the largest |x|), which as integers
  /// have the order of the numbers, and NaN above all. out starts at 0.
  void (*max_magnitude)(ExecContext& ctx, Buffer out, const SumParts& in);
  /// part 2: out f64 (1) += sum of (|x| / largest)^power, largest i32 (1) from part 1, carried in f64. Nothing is added
  /// where the largest is 0 or not finite. power > 0, finite.
  void (*power_sum)(ExecContext& ctx, Buffer out, const SumParts& in, Buffer largest, float power);
  /// part 3: out f64 (1) := (largest * out^(1 / power))^2, the square of the norm; of an infinite power largest^2,
  /// whatever out was.
  void (*norm_of_powers)(ExecContext& ctx, Buffer out, Buffer largest, float power);
  /// scalars f32 (as StepScalars): grad_norm from the f64 (or i64 with exponent) squared norm; clip_coefficient with
  /// clip <= 0 meaning none; skip when the norm is not finite. exponent empty: f64 form.
  void (*clip_coefficient)(ExecContext& ctx, Buffer scalars, Buffer squared_norm, Buffer exponent, int shift,
                           float clip);
  /// scalars (as StepScalars): norm, clip coefficient and skip of `first`, and what follows from the UpdateCount that
  /// `before` is, f64
  void (*correct_scalars)(ExecContext& ctx, Buffer scalars, Buffer first, Buffer before, const StepCorrection& by);
  /// counts f64 (as UpdateCounts): counts a step that is not skipped, by the scalars that it had
  void (*count_updates)(ExecContext& ctx, Buffer counts, Buffer scalars);
  /// grad := grad * clip_coefficient of `scalars`
  void (*clip_gradient)(ExecContext& ctx, Buffer grad, Buffer scalars);

  /// Updates of ranges whose elements no two share, by a rule of kernels/update_rules.h; a GPU takes many in one
  /// launch. Element by element: any cut gives the same bits.
  void (*update)(ExecContext& ctx, const OneOrMany<UpdateRange>& ranges, const UpdateRule& rule);
  /// AdamW with moments of 8 bits, part 1: new scales := the largest magnitudes of the moments after the step among
  /// the part's elements of each block, at most the largest f32; the old ones where the step is skipped. Who shares a
  /// block with others goes on with the largest of all.
  void (*blockwise_adamw_scales)(ExecContext& ctx, const BlockwiseAdamW& of, const AdamWOptions& options);
  /// part 2: a step as AdamW's rule does it from the moments before it; the moments after it become codes for the new
  /// scales. A v above 0 stays above 0.
  void (*blockwise_adamw)(ExecContext& ctx, const BlockwiseAdamW& of, const AdamWOptions& options);
};

/// The CPU kernels for this processor, chosen at the first call among AVX-512 with tiles (AMX), AVX-512, AVX2 and
/// baseline. ZSHARD_ISA=amx|avx512|avx2|baseline overrides (an instruction set the processor lacks is an Error(usage));
/// it does not reach into oneDNN, which makes its own choice.
const KernelTable& cpu_kernels();
/// The kernels for NVIDIA GPUs: for ExecContexts and Buffers of a CUDA device. Launched on the stream, not done on
/// return. Nothing is checked that only the GPU knows.
const KernelTable& cuda_kernels();
/// "amx", "avx512", "avx2" or "baseline": what cpu_kernels() chose.
const char* cpu_isa();
/// True if products of bf16 run in bf16 here; false if they go through f32.
bool cpu_has_bf16_products();

}  // namespace zs
