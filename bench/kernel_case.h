#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/arrays.h"
#include "kernels/kernels.h"
#include "runtime/tensor/ops.h"

namespace zs::bench {

/// What a kernel's rate is compared with: the product ceiling, the copy ceiling, or nothing, where a call is too short for either.
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

/// Scratch of one thread: no case needs more.
inline constexpr std::int64_t kScratchBytes = std::int64_t{8} << 20;

/// Every kernel of the table at the shapes of GPT-2 124M with 1024 tokens, 4 x 256, and at a few odd ones.
std::vector<KernelCase> kernel_cases();
/// The parts that it is put together from.
void add_elementwise_cases(std::vector<KernelCase>& cases, DType dtype);
void add_model_cases(std::vector<KernelCase>& cases, DType dtype);
void add_product_cases(std::vector<KernelCase>& cases, DType dtype);
void add_optimizer_cases(std::vector<KernelCase>& cases);

/// GPT-2 124M: tokens of a micro-batch, width, padded and real vocabulary, elements of a block's unit.
inline constexpr std::int64_t kTokens = 1024, kTime = 256, kWidth = 768, kHeads = 12, kPaddedVocab = 50304, kVocab = 50257,
                              kUnitElems = 7'087'872;
/// Rows of logits that the head works on at a time.
inline std::int64_t chunk_rows() { return lm_head_chunk_rows(kTokens, kPaddedVocab); }
/// A size that is no multiple of anything.
inline constexpr std::int64_t kOddElems = 1'000'003, kOddRows = 1001, kOddWidth = 771;

}  // namespace zs::bench
