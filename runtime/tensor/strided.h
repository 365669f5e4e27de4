#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <vector>

#include "runtime/tensor/tensor.h"

/// Views by which tensors reach the kernels that take elements wherever they lie. Tensors are dense: a view lives for
/// one launch. Nothing here records.
namespace zs {

/// Elements of a tensor under a shape: all of them, a part, or some of them several times.
struct View {
  Buffer buffer;  ///< from the first element on
  Shape shape;
  std::array<std::int64_t, Shape::kMaxDims> strides{};
};
View view_of(const Tensor& x);
/// Lines [first, first + count) of a dim.
View narrow(View view, int dim, std::int64_t first, std::int64_t count);
/// Dim order[d] becomes dim d.
View permuted(const View& view, const std::vector<int>& order);
/// Dims are compared from the last on; those of size 1, and those that are missing, are as long as `shape` wants.
View broadcast(const View& view, const Shape& shape);

/// Argument of map: a view or a constant.
struct Operand {
  std::optional<View> view;
  float constant = 0;
  Operand(View elements) : view(std::move(elements)) {}     // NOLINT(google-explicit-constructor): a view is one
  Operand(const Tensor& tensor) : view(view_of(tensor)) {}  // NOLINT(google-explicit-constructor): so is a tensor
  Operand(float number) : constant(number) {}               // NOLINT(google-explicit-constructor): and a number
};

/// out := op(operands), which are broadcast to out's shape. Work that writes to a part of a tensor is declared to
/// change it.
void map_into(const char* name, Context& context, const View& out, MapOp op, std::initializer_list<Operand> operands);
/// Computes by map into a new tensor.
Tensor computed(const char* name, Context& context, const Shape& shape, DType dtype, MapOp op,
                std::initializer_list<Operand> operands);

/// computed() of i32, exact: an integer op of `tensors`, i32, which are broadcast; operands: they and numbers.
Tensor integers(const char* name, MapOp op, const std::vector<Tensor>& tensors,
                std::initializer_list<Operand> operands);
/// A number beside i32 tensors. UsageError where it is no integer of i32.
Operand integer_beside(const char* name, const Tensor& tensor, float number);

/// Lines along a dim of the shape, of which `count` are meant.
LineDims line_dims(const Shape& shape, int dim, std::int64_t count, bool each_its_own = false);

/// Dims as a set of bits.
using DimSet = unsigned;
/// Reduces over these dims, which the result keeps with size 1. dtype: of the result; i32 for argmax.
Tensor reduced(const char* name, const Tensor& x, ReduceKind op, DimSet dims, DType dtype, float factor = 1.0f);
/// The gradient of what was broadcast from `shape`: dy summed over the dims that were.
Tensor sum_to(const Tensor& dy, const Shape& shape);

/// A dim's number; negative counts from the end. Otherwise a UsageError that names the op.
int dim_of(const char* op, const Shape& shape, int dim);
/// The shape with another size in one dim.
Shape with_size(const Shape& shape, int dim, std::int64_t size);
/// The shape that two shapes are broadcast to, or none.
std::optional<Shape> common_shape(const Shape& a, const Shape& b);

}  // namespace zs
