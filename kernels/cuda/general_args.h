#pragma once

#include <cstdint>

#include "kernels/accumulators.h"
#include "kernels/map_op.h"

/// Arguments of general ops' kernels.
namespace zs::cuda {

/// Number of dims that a shape has at most.
inline constexpr int kMostDims = 6;

enum class ElementKind : std::uint8_t { f32, bf16, i32 };

/// See zs::Strided; address null: the constant.
struct StridedOperand {
  void* address;
  ElementKind kind;
  std::int64_t strides[kMostDims];
  float constant;
};

/// See zs::Map.
struct StridedMapArgs {
  MapOp op;
  int dims;
  std::int64_t sizes[kMostDims], elems;
  StridedOperand out, in[3];
};

struct StridedDims {
  int dims;
  std::int64_t sizes[kMostDims], strides[kMostDims], elems;
};

/// See zs::Reduce.
struct ReduceDimsArgs {
  ReduceKind op;
  void* out;
  const void* in;
  StridedDims kept, reduced;
  float factor;
  bool is_out_bf16;  // asked once a result
};

/// See zs::LineDims. x is f32 where lines are added.
struct LinesArgs {
  void *x, *y;
  const std::int32_t* ids;
  std::int64_t outer, lines, count, inner;
  bool each_its_own;
};

/// See KernelTable::order_lines and sum_lines. is_backward: is_descending, too.
struct WholeLinesArgs {
  const void* x;
  void* y;
  ElementKind kind;
  std::int64_t outer, lines, count, inner;
  bool is_backward;
};

/// See zs::DropoutMask.
struct DropoutArgs {
  void* out;
  const void* in;
  std::int64_t elems, first;
  std::uint64_t key;
  std::uint32_t threshold;
  float factor;
};

}  // namespace zs::cuda
