#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/strided.h"

namespace zs {

namespace {

Tensor cast_elements(const Tensor& x, DType dtype) {
  Context& context = x.context();
  Tensor y = Tensor::empty(context, x.shape(), dtype);
  const Buffer out = y.buffer(), in = x.buffer();
  context.launch({"cast", {in}, {out}},
                 [&kernels = context.kernels(), out, in](ExecContext& exec) { kernels.cast(exec, out, in); });
  return y;
}

}  // namespace

Tensor as_tensor(Context& context, Parameter& parameter) {
  const Buffer in = parameter.value();
  Tensor y = Tensor::empty(context, parameter.shape(), in.dtype);
  const Buffer out = y.buffer();
  context.launch({"as_tensor", {in}, {out}},
                 [&kernels = context.kernels(), out, in](ExecContext& exec) { kernels.copy(exec, out, in); });
  record_op(y, "as_tensor", {}, {&parameter}, [&parameter](const Tensor& dy) {
    parameter.add_grad(dy.context(), dy);
    return std::vector<Tensor>{};
  });
  return y;
}

Tensor rows_of(Context& context, const Parameter& parameter, std::int64_t first, std::int64_t rows) {
  const Shape& shape = parameter.shape();
  const std::int64_t all = shape.rank() > 0 ? shape[0] : 0, columns = all > 0 ? shape.numel() / all : 0;
  if (first < 0 || rows < 0 || first + rows > all)
    throw UsageError(
        fmt::format("op rows_of: rows {} to {} of parameter {} {}", first, first + rows, parameter.name(), shape.str()),
        "ask for rows that it has");
  std::vector<std::int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims.front() = rows;
  const Buffer in = parameter.value().slice(first * columns, rows * columns);
  Tensor y = Tensor::empty(context, Shape(std::span<const std::int64_t>(dims)), DType::f32);
  const Buffer out = y.buffer();
  context.launch({"rows_of", {in}, {out}}, [&kernels = context.kernels(), out, in](ExecContext& exec) {
    in.dtype == out.dtype ? kernels.copy(exec, out, in) : kernels.cast(exec, out, in);
  });
  return y;
}

Tensor cast(const Tensor& x, DType dtype) {
  if (x && x.dtype() == dtype) return x;
  if (x && x.dtype() == DType::i32 && (dtype == DType::f32 || dtype == DType::bf16))
    return computed("cast_integers", x.context(), x.shape(), dtype, MapOp::copy, {x});
  require_float("cast", "x", x);
  if (dtype == DType::i32)
    return computed("cast_to_integers", x.context(), x.shape(), dtype, MapOp::clamp,
                    {x, -2147483648.0f, 2147483520.0f});
  if (dtype != DType::f32 && dtype != DType::bf16)
    throw UsageError(fmt::format("op cast: to {}, expected f32, bf16 or i32", name_of(dtype)));
  Tensor y = cast_elements(x, dtype);
  record_op(y, "cast", {x}, {},
            [dtype = x.dtype()](const Tensor& dy) { return std::vector<Tensor>{cast_elements(dy, dtype)}; });
  return y;
}

}  // namespace zs
