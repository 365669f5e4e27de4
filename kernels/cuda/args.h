#pragma once

#include <cstdint>

#include "kernels/accumulators.h"
#include "kernels/dynamic_code.h"
#include "kernels/no_target.h"
#include "kernels/rotary_angle.h"
#include "kernels/update_rules.h"

/// Arguments of a kernel: one struct, by value; what an operation does not use keeps its value from here. Elements are
/// f32 or bf16, as the kernel's name says. Seen by the host code, which fills it in from checked Buffers, and by nvcc;
/// so it includes nothing of the host's.
namespace zs::cuda {

struct Rows {
  std::int64_t count, width;
};

/// Threads of a block, of every kernel.
inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;

/// out[i] := f(a[i], b[i]) for i < elems. Whole packs of 16 bytes are read and written where `is_aligned`: all
/// addresses are multiples of 16.
struct MapArgs {
  void* out;
  const void *a, *b = nullptr;
  std::int64_t elems;
  float factor = 1.0f;
  bool is_erf = false, is_aligned = false;
};
/// Elements of a row, whatever their dtype, that one thread takes at a time.
inline constexpr int kRowElems = 8;

/// out = table[ids[i]] + positions[i mod time]; positions null: none.
struct EmbeddingArgs {
  void* out;
  const void *table, *positions;
  const std::int32_t* ids;
  Rows rows;
  std::int64_t table_rows, time;
  bool is_aligned;  // here and below: addresses, and rows to whole packs
};

/// order (count) := the tokens by their ids, those of one id in order; other (count): to work in. passes: of
/// kIdBitsAPass bits of the ids each.
inline constexpr int kIdBitsAPass = 4;
struct SortIdsArgs {
  const std::int32_t* ids;
  std::int32_t *order, *other;
  std::int64_t count, table_rows;
  int passes;
};

/// table[ids[i]] += dy[i] in order of i, or at i mod time where ids is null. Rows of the id `padding` are passed over.
/// order: of the ids, see SortIdsArgs.
struct ScatterArgs {
  void* table;
  const void* dy;
  const std::int32_t *ids = nullptr, *order = nullptr;
  Rows rows;
  std::int64_t table_rows, time = 0;
  std::int32_t padding = -1;
  bool is_aligned;
};

/// parts (count, [2,] width) f32: sums over every count-th group of rows, one for each of a block's warps. Of a bias:
/// of dy. Of layer norm: of dy xhat, then of dy. Of RMS norm: of dy xhat. dy and x have one dtype.
struct ColumnSumsArgs {
  const void *dy, *x = nullptr;                  // x null: of a bias
  const float *mean = nullptr, *rstd = nullptr;  // mean null: of RMS norm
  float* parts = nullptr;
  Rows rows;
  std::int64_t count = 0;
  bool is_aligned;
};
/// Columns that a block sums up.
inline constexpr int kColumnsABlock = kWarp * kRowElems;

/// outs[s] (width) := the sum of parts (count, sums, width) over count, + beta * outs[s]
struct PartsArgs {
  const float* parts;
  std::int64_t count, sums, width;
  void* outs[2];
  float beta;
};

/// Packs of a row that a lane of a warp holds in registers: rows of at most so many have kernels of their own.
/// The last: where sums of two kinds are held too.
inline constexpr int kNormPacks = 4, kWideNormPacks = 8, kWideSumsPacks = 7;

/// RMS norm has neither mean nor beta. residual, sum: see NormInput; null: none.
struct LayerNormArgs {
  void *y, *sum;
  const void *x, *residual, *gamma, *beta = nullptr;
  float *mean = nullptr, *rstd;
  Rows rows;
  float eps, offset = 0;  // offset: see NormFactors
  bool is_aligned = false, is_beta_bf16 = false;
};

/// skip: see NormGradient; null: none. parts (blocks, [2,] width): of kernels that sum up columns too, as
/// ColumnSumsArgs has them, for each block.
struct LayerNormBackwardArgs {
  void* dx;
  const void *dy, *skip, *x, *gamma;
  const float *mean = nullptr, *rstd;
  float* parts = nullptr;
  Rows rows;
  float offset = 0;
  bool is_aligned = false;
};

/// y (rows), or dy, and x, or dx, of twice their width.
struct SwigluArgs {
  void *y = nullptr, *dx = nullptr;
  const void *x, *dy = nullptr;
  Rows rows;
  bool is_aligned;
};

/// Rows of qkv, one for each token: `turned` elements of heads to be turned, then `kept` ones.
struct RotaryArgs {
  void* out;
  const void* in;
  std::int64_t tokens, time, first, head_dim, turned, kept;
  double ratio;  // base^(-2 / head_dim)
  RotaryScaling scaling;
  bool is_inverse, is_aligned;
};

/// Logits have any dtype where dlogits replace them; else they are f32.
struct CrossEntropyArgs {
  float *losses = nullptr, *lse;
  void *logits, *dlogits = nullptr;
  const float* dloss = nullptr;
  const std::int32_t* targets;
  std::int64_t rows, stride, classes;
  float factor = 1.0f;
  bool is_aligned;
};

/// Elements that one thread of a map takes: 16 bytes of the narrowest operand.
constexpr std::int64_t pack_elems(bool has_bf16) { return has_bf16 ? 8 : 4; }

/// Units of 1, 2, 4, 8 or 16 bytes; strides are of units too.
struct CopyRowsArgs {
  void* out;
  const void* in;
  std::int64_t rows, run, out_stride, in_stride;
  int unit_bytes;
};

/// See KernelTable; delta (batch, heads, time): sum of dout * out of each row.
struct AttentionArgs {
  void *qkv, *out, *dout = nullptr, *dqkv = nullptr;
  float *lse, *delta = nullptr;
  std::int64_t batch, time, heads, kv_heads, head_dim;
  std::int64_t window;  // keys that a query sees at most
  float scale;          // 1 / sqrt(head_dim)
  bool is_aligned;
};
/// Queries of qkv, the first at position `first`, and rows of a cache; row: floats of scores for each query and head.
struct CachedAttentionArgs {
  void* out;
  const void *qkv, *cache;
  float* scores;
  std::int64_t row, first, heads, kv_heads, head_dim, window;
  float scale;  // 1 / sqrt(head_dim)
};
/// Threads of a block of the kernels on tensor cores; lanes that share a row of delta.
inline constexpr int kAttentionThreads = 128, kDeltaLanes = 8;
/// Sizes of the general kernels: rows and columns of a block's scores, and elements of head_dim that a block computes
/// results for.
inline constexpr int kAttentionRows = 64, kAttentionSlice = 64;

/// A block's part of attention on tensor cores: rows of its own (forward and dqueries: queries; dkeys: keys), which it
/// holds, and of the others, which pass by in two buffers. shared_bytes: of dynamic shared memory.
struct AttentionShape {
  int own, other, shared_bytes;
};
/// `held`: the block's own matrices; two others pass by, with `floats` of their rows.
constexpr AttentionShape attention_shape(int head_dim, int own, int other, int held, int floats) {
  return {own, other, 2 * head_dim * (held * own + 2 * 2 * other) + 2 * 4 * floats * other};
}
/// Queries; keys and values pass by.
template <int kHeadDim>
inline constexpr AttentionShape kForwardShape = attention_shape(kHeadDim, 128, kHeadDim == 64 ? 64 : 32, 1, 0);
/// Queries and dout; keys and values pass by.
template <int kHeadDim>
inline constexpr AttentionShape kQueriesShape = attention_shape(kHeadDim, 128, kHeadDim == 64 ? 64 : 32, 2, 0);
/// Keys and values; queries and dout pass by, with lse and delta.
template <int kHeadDim>
inline constexpr AttentionShape kKeysShape = attention_shape(kHeadDim, kHeadDim == 64 ? 128 : 64,
                                                             kHeadDim == 64 ? 64 : 32, 2, 2);

/// out bf16; see StochasticRounding.
struct StochasticCastArgs {
  std::uint16_t* out;
  const float* in;
  std::int64_t elems;
  std::uint64_t key;
  std::int64_t first, run, stride;
  bool is_aligned;
};

/// `slices` slices of `elems` elements, and what is packed of them, `stride` bytes apart: of each slice one (pack), or
/// `parts` to be added up (fold). `packed`: a multiple of 16, and so is stride. is_aligned: the elements of every
/// slice.
struct Int8Args {
  void* data;
  std::int8_t* packed;
  std::int64_t elems, slices, stride, scales_at;
  int parts;
  bool accumulates = false, is_aligned;
};
/// Elements that share a scale, and those that one thread takes.
inline constexpr int kInt8Block = 256, kInt8Elems = 16;

/// `slices` slices of `elems` elements := what is packed of them, `stride` bytes apart, with the 16 values of a
/// magnitude of 1. `packed`: a multiple of 16, and so is stride. is_aligned: the elements of every slice.
struct Nf4Args {
  void* data;
  const std::uint8_t* packed;
  std::int64_t elems, slices, stride, scales_at;
  float values[16];
  bool is_aligned;
};
/// Elements that share a magnitude, and those that one thread takes.
inline constexpr int kNf4Block = 64, kNf4Elems = 16;

enum class Reduction : std::uint8_t { sum, squares, max_magnitude, fixed_point, magnitude_bits, powers };

/// Range that some of the blocks reduce, from `first_block` on. Ranges of a launch may differ in dtype: a block asks
/// once.
struct ReduceRange {
  const void* in;
  std::int64_t elems;
  int first_block;
  bool is_bf16, is_aligned;
};
/// Ranges of one launch, whose arguments keep below 4 KiB.
inline constexpr int kReduceRanges = 96;

/// parts[b] := of a range's block i what lies in [i * chunk, (i + 1) * chunk), one number of 8 bytes for each block b.
struct ReduceArgs {
  ReduceRange ranges[kReduceRanges];
  int count;
  std::int64_t chunk;
  void* parts;
  const std::int32_t* exponent;  // exponent of fixed_point; for powers the bits of the largest magnitude
  int shift;
  Reduction reduction;
  float power;
};
static_assert(sizeof(ReduceArgs) < 4096);
/// Limits: at most so many blocks reduce, and one more for each range, each at least so many elements; both follow from
/// the numbers of elements alone, and so do the bits.
inline constexpr std::int64_t kReduceBlocks = 512, kReduceChunk = 8 * kThreads * 4;

/// out[0] gets the parts, in order: sum: f32, times factor; squares, powers: f64, added; max_magnitude: i32, the larger
/// exponent; magnitude_bits: i32, the larger; fixed_point: i64, added.
struct FinishArgs {
  const void* parts;
  int count;
  void* out;
  const std::int32_t* exponent;
  float factor;
  Reduction reduction;
};

/// squared_norm: f64, or i64 where `exponent` is not null.
struct ClipArgs {
  StepScalars* scalars;
  const void* squared_norm = nullptr;
  const std::int32_t* exponent = nullptr;
  int shift;
  float clip;
};

/// One set of scalars: see correct().
struct CorrectArgs {
  StepScalars* scalars;
  const StepScalars* first;
  const UpdateCount* before;
  StepCorrection by;
};

struct CountArgs {
  UpdateCount* counts;
  const StepScalars* scalars;
  std::int64_t elems;
};

/// Range that some of the blocks update, from `first_block` on: see UpdateRange; m, v, copy: null: none.
struct UpdateRangeArgs {
  float *master, *m, *v;
  std::uint16_t* copy;
  const float* grad;
  const StepScalars* scalars;
  std::int64_t elems;
  int first_block = 0;
  float weight_decay;
  bool is_aligned;
};
/// Ranges of one launch, whose arguments keep below 4 KiB; elements that a thread takes.
inline constexpr int kUpdateRanges = 56, kUpdateElems = 8;
struct UpdateArgs {
  UpdateRangeArgs ranges[kUpdateRanges];
  int count;
  UpdateRule rule = AdamWOptions{};
};
static_assert(sizeof(UpdateArgs) < 4096);

/// out: f64, the sum of powers on entry.
struct NormOfPowersArgs {
  double* out;
  const std::int32_t* largest;
  float power;
};

struct ClipGradientArgs {
  void* grad;
  const StepScalars* scalars;
  std::int64_t elems;
};

/// See zs::BlockwiseAdamW; the codes are what an m and a v stand for.
struct BlockwiseAdamWArgs {
  float* master;
  std::uint16_t* copy;  // bf16, null: none
  const float* grad;
  const StepScalars* scalars;
  std::uint8_t *m, *v;
  const float *m_scales, *v_scales;
  float *new_m_scales, *new_v_scales;
  std::int64_t elems;
  ElementRuns part;
  AdamWOptions options;
  float weight_decay;
  DynamicCodes m_codes, v_codes;
};

}  // namespace zs::cuda
