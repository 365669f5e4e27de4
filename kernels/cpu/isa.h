#pragma once

#include <cstdint>

#include "kernels/kernels.h"

/// The vector loops, compiled once per instruction set from the same sources (ZS_ISA names the namespace). They see raw
/// pointers and sizes that the kernels have checked; they neither throw nor allocate. Nothing that includes this
/// header on behalf of an instruction set may call an inline function of another header: its out-of-line copy could
/// be compiled for AVX-512 and then be the one the whole program uses.
namespace zs::cpu {

/// f32 or bf16 elements.
struct Data {
  void* address;
  bool is_bf16;
};

struct Rows {
  std::int64_t count, width;
};

/// Layer norm, or, where mean is null, RMS norm, which has no beta either. wide: scratch of 2 * rows.width floats.
/// residual, sum: see NormInput; null: none.
struct LayerNormForward {
  Data y, x, gamma, beta;
  float *mean, *rstd, *wide;
  Rows rows;
  float eps;
  Data residual = {}, sum = {};
  float offset = 0;  // added to gamma
};

/// Arguments of the backward of a layer or RMS norm; RMS norm has no dbeta. dgamma and dbeta are plain sums, without
/// what was there before. wide: scratch of rows.width floats; parts: of 2 * rows.width floats for each block of
/// row_blocks. skip: see NormGradient; null: none.
struct LayerNormBackward {
  Data dx, dy, x, gamma;
  float *dgamma, *dbeta, *wide, *parts;
  const float *mean, *rstd;
  Rows rows;
  Data skip = {};
  float offset = 0;  // added to gamma
};

/// out = table[ids[i]] + positions[i mod time]; positions.address null: none.
struct Embedding {
  Data out, table, positions;
  const std::int32_t* ids;
  Rows rows;
  std::int64_t time;
};

/// table (table_rows, rows.width) += dy[i] at ids[i]; or, where ids is null, table := beta * table, then += dy[i] at i
/// mod period.
struct ScatterRows {
  Data table, dy;
  const std::int32_t* ids;
  Rows rows;
  std::int64_t table_rows, period;
  float beta;
  std::int32_t padding;  // the id whose rows are passed over
};

/// ratio: base^(-2 / head_dim). scratch: rotary_scratch_elems floats for each thread, 8-byte aligned.
struct Rotary {
  Data out, in;
  AttentionDims dims;
  double ratio;
  bool is_inverse;
  float* scratch;
  RotaryScaling scaling = {};
  std::int64_t first = 0;
};

/// dout, dqkv: backward only. scratch: `scratch_elems` floats for each thread, 64-byte aligned
/// (attention_scratch_elems).
struct Attention {
  Data out, qkv, dout, dqkv;
  float* lse;
  AttentionDims dims;
  float* scratch;
  std::int64_t scratch_elems;
  Data sinks = {};  ///< null: none
};

/// See KernelTable; scores: first + dims.time + head_dim floats for each query.
struct CachedAttention {
  Data out, qkv, cache;
  float* scores;
  AttentionDims dims;
  std::int64_t first;
  Data sinks = {};  ///< null: none
};

struct CrossEntropy {
  float *losses, *lse;
  const float* logits;
  Data dlogits;
  const std::int32_t* targets;
  std::int64_t rows, stride, classes;
  float factor;
};

/// See zs::UpdateRange; m, v, copy: null: none.
struct Update {
  float *master, *m, *v;
  std::uint16_t* copy;
  const float* grad;
  StepScalars scalars;
  float weight_decay;
};

/// See zs::BlockwiseAdamW; copy as above.
struct BlockwiseAdamW {
  float* master;
  std::uint16_t* copy;
  const float* grad;
  std::uint8_t *m, *v;
  const float *m_scales, *v_scales;
  float *new_m_scales, *new_v_scales;
  ElementRuns part;
  StepScalars scalars;
  float weight_decay;
  AdamWOptions options;
};

struct MapOperand {
  void* address;  // null: the constant
  DType dtype;
  std::int64_t strides[Shape::kMaxDims];
  float constant;
};

/// See zs::Map.
struct MapLoop {
  MapOp op;
  int dims;
  std::int64_t sizes[Shape::kMaxDims], elems;
  MapOperand out, in[3];
};

struct ReduceDims {
  int dims;
  std::int64_t sizes[Shape::kMaxDims], strides[Shape::kMaxDims], elems;
};

/// See zs::Reduce.
struct ReduceLoop {
  ReduceKind op;
  void* out;
  DType out_dtype;
  Data in;
  ReduceDims kept, reduced;
  float factor;
};

struct Isa {
  const char* name;
  void (*map)(int threads, const MapLoop& args);
  void (*reduce)(int threads, const ReduceLoop& args);
  void (*dropout)(int threads, Data out, Data in, std::int64_t n, const DropoutMask& mask);
  /// elements of f32, at any address
  void (*zero)(int threads, Data out, std::int64_t n);
  /// from f32 to f32: any bits, at any address
  void (*cast)(int threads, Data out, Data in, std::int64_t n);
  void (*stochastic_cast)(int threads, std::uint16_t* out, const float* in, std::int64_t n,
                          const StochasticRounding& rounding);
  void (*add)(int threads, Data out, Data a, Data b, std::int64_t n);
  void (*scale)(int threads, Data out, Data in, std::int64_t n, float factor);
  void (*accumulate)(int threads, Data out, Data in, std::int64_t n);
  void (*gelu_forward)(int threads, Data y, Data x, std::int64_t n, GeluKind kind);
  void (*gelu_backward)(int threads, Data dx, Data dy, Data x, std::int64_t n, GeluKind kind);
  /// out (width) := sum over rows of dy; parts: scratch of rows.width floats for each block of row_blocks
  void (*column_sums)(int threads, float* out, float* parts, Data dy, Rows rows);
  void (*embedding)(int threads, const Embedding& args);
  void (*scatter_rows)(int threads, const ScatterRows& args);
  void (*layer_norm_forward)(int threads, const LayerNormForward& args);
  void (*layer_norm_backward)(int threads, const LayerNormBackward& args);
  void (*swiglu_forward)(int threads, Data y, Data x, Rows rows);
  void (*swiglu_backward)(int threads, Data dx, Data dy, Data x, Rows rows);
  void (*geglu_forward)(int threads, Data y, Data x, Rows rows);
  void (*geglu_backward)(int threads, Data dx, Data dy, Data x, Rows rows);
  void (*rotary)(int threads, const Rotary& args);
  void (*attention_forward)(int threads, const Attention& args);
  void (*attention_backward)(int threads, const Attention& args);
  void (*attention_cached)(int threads, const CachedAttention& args);
  /// sums (heads) := the gradient of the sinks; args: dout, out, lse, sinks
  void (*attention_dsinks)(int threads, float* sums, const Attention& args);
  void (*cross_entropy_forward)(int threads, const CrossEntropy& args);
  void (*cross_entropy_backward)(int threads, const CrossEntropy& args);
  double (*sum)(int threads, const float* in, std::int64_t n);
  double (*squares)(int threads, Data in, std::int64_t n);
  /// the largest |x| as its f32 bit pattern (not finite: above 0x7f7fffff)
  std::int32_t (*max_magnitude_bits)(int threads, Data in, std::int64_t n);
  /// sum of round(x * x * factor), half upwards
  std::int64_t (*fixed_point_squares)(int threads, Data in, std::int64_t n, double factor);
  /// sum of (|x| * factor)^power, in f64
  double (*power_sum)(int threads, Data in, std::int64_t n, double factor, double power);
  void (*update)(int threads, const Update& args, const UpdateRule& rule, std::int64_t n);
  void (*blockwise_adamw_scales)(int threads, const BlockwiseAdamW& args, std::int64_t n);
  void (*blockwise_adamw)(int threads, const BlockwiseAdamW& args, std::int64_t n);
};

/// Queries and keys are taken in tiles of so many rows.
static constexpr std::int64_t kAttentionTile = 64;

static constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

/// Sums over rows are taken in `count` blocks of `rows` each, which follow from the number of rows alone: blocks are
/// given to threads, and their sums are added in order.
struct RowBlocks {
  std::int64_t rows, count;
};
static constexpr RowBlocks row_blocks(std::int64_t rows) {
  constexpr std::int64_t kFewestRows = 64, kMostBlocks = 64;
  const std::int64_t even = (rows + kMostBlocks - 1) / kMostBlocks, each = even > kFewestRows ? even : kFewestRows;
  return {each, (rows + each - 1) / each};
}

/// Keys whose scores are taken together where attention is computed by tiles.
static constexpr std::int64_t kAmxKeys = 512;

/// Floats of scratch that one thread needs, forward or backward, on any instruction set: six (time, head_dim) operands
/// or results, or eight where query heads share keys, the rows' statistics and a few tiles or rows of scores, all
/// padded.
static constexpr std::int64_t attention_scratch_elems(const AttentionDims& dims) {
  const std::int64_t time = round_up(dims.time, kAttentionTile), width = round_up(dims.head_dim, 32);
  return (kv_heads_of(dims) < dims.heads ? 8 : 6) * time * width + (kAttentionTile + 2) * time +
         kAttentionTile * (kAmxKeys + 3 * width + 32);
}

/// The angles of a position and their cosines and sines.
static constexpr std::int64_t rotary_scratch_elems(const AttentionDims& dims) {
  return 3 * round_up(dims.head_dim, 16);
}

namespace baseline {
/// Loops of this instruction set. Called only where the processor has it.
const Isa& loops();
}  // namespace baseline
namespace avx2 {
const Isa& loops();
}
namespace avx512 {
const Isa& loops();
}
#if defined(ZS_HAS_AMX)
/// AVX-512's, but for attention, which has tiles for bf16.
namespace amx {
const Isa& loops();
}
#endif

}  // namespace zs::cpu
