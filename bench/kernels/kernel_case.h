#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/common/arrays.h"
#include "runtime/tensor/ops.h"

namespace zs::bench {

constexpr DType kF32 = DType::f32;
inline double bytes_of(std::int64_t elems, DType dtype) { return static_cast<double>(elems * size_of(dtype)); }

/// What a kernel's rate is compared with: the product ceiling, the copy ceiling, or nothing, where a call is too short
/// for either.
enum class Bound : std::uint8_t { products, memory, latency };
constexpr const char* name_of(Bound bound) {
  switch (bound) {
    case Bound::products: return "products";
    case Bound::memory: return "memory";
    case Bound::latency: return "latency";
  }
  return "?";
}

/// One kernel of the table at one shape.
struct KernelCase {
  std::string kernel;  ///< the table's name for it
  std::string shape;   ///< what it works on, in words and sizes
  DType dtype = DType::f32;
  Bound bound = Bound::memory;
  double bytes = 0;  ///< that a call must move: each input read once, each output written once
  double flops = 0;  ///< of a call, where products are the bound
  /// A call on operands of its own, those of set number `set`. What the call captures lives as long as `arrays`.
  std::function<Work(Arrays& arrays, int set)> make = {};

  /// What --filter looks in: "gelu_forward 1024 x 3072 bf16".
  std::string text() const { return fmt::format("{} {} {}", kernel, shape, zs::name_of(dtype)); }
};

/// What a CPU's kernels take of scratch for each thread, and a GPU's together: no case needs more.
inline constexpr std::int64_t kScratchBytes = std::int64_t{8} << 20, kGpuScratchBytes = std::int64_t{64} << 20;
/// The latter with attention by cuDNN.
inline constexpr std::int64_t kCudnnScratchBytes = std::int64_t{320} << 20;

/// The sizes that the cases have: those of a model's step, and a few odd ones.
struct CaseSizes {
  std::int64_t batch = 4, time = 256, width = 768, heads = 12;  ///< of a micro-batch: GPT-2 124M with 1024 tokens
  std::int64_t vocab = 50257, padded_vocab = 50304;             ///< real and with padding
  std::int64_t unit_elems = 7'087'872;                          ///< of a block's unit
  std::int64_t swiglu_width = 2048;                             ///< of a Llama's gated MLP that is about as large
  std::int64_t odd_elems = 1'000'003, odd_rows = 1001, odd_width = 771;  ///< no multiples of anything
  std::vector<AttentionDims> attention = {{4, 256, 12, 64}, {1, 1024, 12, 64}, {1, 1024, 12, 64, 4}, {3, 331, 5, 40}};

  bool is_gpu = false;  ///< whose table has kernels that a CPU's has not

  std::int64_t tokens() const { return batch * time; }
  /// Rows of logits that the head works on at a time.
  std::int64_t chunk_rows() const {
    return lm_head_chunk_rows(tokens(), padded_vocab, is_gpu ? DeviceKind::cuda : DeviceKind::cpu);
  }
};
/// What keeps a GPU at work for longer than a launch takes: GPT-2 124M with 16 x 1024 tokens, a block's unit of 1.5B,
/// attention of up to 4096 tokens.
CaseSizes gpu_case_sizes();

/// Every kernel of the table at these sizes.
std::vector<KernelCase> kernel_cases(const CaseSizes& sizes = {});
/// The parts that it is put together from.
void add_elementwise_cases(std::vector<KernelCase>& cases, const CaseSizes& sizes, DType dtype);
void add_general_cases(std::vector<KernelCase>& cases, const CaseSizes& sizes, DType dtype);
void add_model_cases(std::vector<KernelCase>& cases, const CaseSizes& sizes, DType dtype);
void add_product_cases(std::vector<KernelCase>& cases, const CaseSizes& sizes, DType dtype);
void add_optimizer_cases(std::vector<KernelCase>& cases, const CaseSizes& sizes);

}  // namespace zs::bench
