#pragma once

#include <array>
#include <cstdint>

#include "kernels/accumulators.h"
#include "kernels/map_op.h"
#include "runtime/base/buffer.h"
#include "runtime/base/shape.h"

/// Arguments of general ops' kernels.
namespace zs {

/// Buffer whose elements, from its first one on, belong to those of a shape: strides[d] apart in dim d; 0: broadcast.
struct Strided {
  Buffer buffer;
  std::array<std::int64_t, Shape::kMaxDims> strides{};
};

/// out := op(a, b, c), element by element of `shape`, which has at least one dim. An operand without a buffer is its
/// constant. Elements are f32, bf16 or i32 and are computed in f32, so that integers are exact up to 2^24; but op copy
/// between two buffers of i32 keeps all bits, and operands of the integer ops are i32 (UsageError where one is divided
/// by 0; a GPU stops). No two elements of out have one place. An input may be out where it has
/// out's strides.
struct Map {
  MapOp op;
  Shape shape;
  Strided out;
  std::array<Strided, 3> in{};
  std::array<float, 3> constants{};
};

/// A map of integers, whose bits are moved as they are.
inline bool keeps_bits(const Map& map) {
  return is_of_integers(map.op) || (map.op == MapOp::copy && map.out.buffer.dtype == DType::i32 &&
                                    map.in[0].buffer.dtype == DType::i32 && !map.in[0].buffer.empty());
}

/// out, dense, of `kept` := the elements of `in`, f32 or bf16, over all of `reduced`, for each of `kept`; both have at
/// least one dim, and only a sum may be of none. Sums: times factor, carried in f64 in an order that follows from the
/// shapes alone, out f32 or bf16. argmax: i32, the first place of the largest in row-major order of `reduced`, of NaN
/// where there is one.
struct Reduce {
  ReduceKind op;
  Shape kept, reduced;
  Buffer out, in;
  std::array<std::int64_t, Shape::kMaxDims> kept_strides{}, reduced_strides{};
  float factor = 1.0f;
};

/// Lines of the middle of three dims: x (outer, lines, inner) and y (outer, count, inner), y[o, i, e] being x[o,
/// ids[i], e]; ids i32 (count), or, with each_its_own, (outer, count, inner) of an id for each element.
struct LineDims {
  std::int64_t outer, lines, count, inner;
  bool each_its_own = false;
};

/// Elements that dropout keeps: the fate of the one at index first + i follows from this and the key alone.
/// probability: of an element to be dropped.
struct DropoutMask {
  std::uint64_t key;
  std::int64_t first;
  float probability;
};

}  // namespace zs
