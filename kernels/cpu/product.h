#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"

/// Calls of oneDNN that products are made of, each on one thread.
namespace zs::cpu {

/// Operands of one product; a, b and c are dense with the strides that MatmulDims implies.
struct Product {
  const std::byte *a, *b;
  std::byte* c;
  const std::byte* bias;  // null: none
  DType operand, result, bias_dtype;
  MatmulDims dims;

  std::int64_t a_stride() const { return dims.transpose_a ? dims.m : dims.k; }
  std::int64_t b_stride() const { return dims.transpose_b ? dims.k : dims.n; }
  /// One of a batch.
  Product item(std::int64_t i) const {
    Product one = *this;
    one.a += i * dims.m * dims.k * size_of(operand);
    one.b += i * dims.k * dims.n * size_of(operand);
    one.c += i * dims.m * dims.n * size_of(result);
    return one;
  }
};

/// Rows [row, row + rows) and columns [column, column + columns) of C.
struct Block {
  std::int64_t row, rows, column, columns;
};

/// State of the library for a stream: primitives, which run on the thread that made them, and f32 copies of operands.
class ProductLibrary {
 public:
  ProductLibrary();
  ~ProductLibrary();

  /// body(i, thread) for i < count, by a team of at most `threads`; a library call in it uses one thread. Throws what
  /// the body throws, oneDNN's own errors as Error(internal) at `where`.
  void run_team(int threads, std::int64_t count, const std::string& where,
                const std::function<void(std::int64_t, int)>& body);
  /// A block of a product by a primitive, which is kept for its sizes, or by the library's gemm, f32 without bias.
  void run_primitive(int thread, const Product& product, const Block& block);
  static void run_gemm(const Product& product, const Block& block);

  std::vector<float> a, b, c, bias;  ///< f32 copies where bf16 products are missing

 private:
  struct Slots;
  std::unique_ptr<Slots> slots_;
};

/// `elems` elements of bf16 as f32, which lie in `room`.
const std::byte* widen(ExecContext& ctx, std::vector<float>& room, const void* in, std::int64_t elems);

}  // namespace zs::cpu
