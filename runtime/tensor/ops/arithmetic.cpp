#include "runtime/tensor/arithmetic.h"

#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

/// The shape of what op makes of both.
Shape broadcast_shape(const char* op, const Tensor& a, const Tensor& b) {
  if (!a || !b) require_alike(fmt::format("op {}", op), a, b);
  const std::optional<Shape> shape = common_shape(a.shape(), b.shape());
  if (!shape)
    throw UsageError(fmt::format("op {} of {} and {}", op, a.describe(), b.describe()),
                     "dims, from the last on, are alike, or one of them is 1: reshape one of them");
  if (a.dtype() != b.dtype())
    throw UsageError(fmt::format("op {} of {} and {}", op, a.describe(), b.describe()),
                     a.dtype() == DType::i32 || b.dtype() == DType::i32
                         ? "cast one of them: cast(x, DType::f32), or to DType::i32"
                         : "cast one of them: cast(x, DType::f32)");
  return *shape;
}

bool is_integer(const Tensor& x) { return x && x.dtype() == DType::i32; }
bool are_integers(const Tensor& a, const Tensor& b) { return is_integer(a) && is_integer(b); }
/// 1 where the mask is not 0, else 0.
Tensor mask_of_integers(const Tensor& mask) {
  if (!mask) throw UsageError("op where: a mask that is empty", "give f32, bf16 or i32");
  if (is_integer(mask)) return mask;
  return computed("integer_mask", mask.context(), mask.shape(), DType::i32, MapOp::where, {mask, 1.0f, 0.0f});
}

Tensor integers_chosen(const Tensor& mask, std::vector<Tensor> tensors, const Operand& yes, const Operand& no) {
  const Tensor whole = mask_of_integers(mask);
  tensors.push_back(whole);
  return integers("where", MapOp::int_where, tensors, {whole, yes, no});
}

/// Tensors that a gradient is made of.
struct Kept {
  Tensor dy, y, a, b;
};
/// Gradient by one argument, of the result's shape.
using Gradient = Tensor (*)(const Kept& saved);

Tensor same(const char* name, const Kept& s, MapOp op, std::initializer_list<Operand> operands) {
  return computed(name, s.dy.context(), s.dy.shape(), s.dy.dtype(), op, operands);
}

/// keeps_inputs, keeps_output: whether the gradients look at them.
struct BinaryOp {
  MapOp op;
  Gradient by_a, by_b;
  bool keeps_inputs, keeps_output;
};

Tensor binary(const char* name, const BinaryOp& op, const Tensor& a, const Tensor& b) {
  const Shape shape = broadcast_shape(name, a, b);
  require_float(name, "a", a);
  Tensor y = computed(name, a.context(), shape, a.dtype(), op.op, {a, b});
  Kept saved;
  if (op.keeps_inputs) saved.a = a.detach(), saved.b = b.detach();
  if (op.keeps_output) saved.y = y.detach();
  record_op(y, name, {a, b}, {},
            [op, saved, a_shape = a.shape(), b_shape = b.shape(), wants_a = a.requires_grad(),
             wants_b = b.requires_grad()](const Tensor& dy) {
              Kept all = saved;
              all.dy = dy;
              return std::vector<Tensor>{wants_a ? sum_to(op.by_a(all), a_shape) : Tensor{},
                                         wants_b ? sum_to(op.by_b(all), b_shape) : Tensor{}};
            });
  return y;
}

Tensor passed(const Kept& s) { return s.dy; }
Tensor negated(const Kept& s) { return same("neg_backward", s, MapOp::mul, {s.dy, -1.0f}); }
Tensor times_a(const Kept& s) { return same("mul_backward", s, MapOp::mul, {s.dy, s.a}); }
Tensor times_b(const Kept& s) { return same("mul_backward", s, MapOp::mul, {s.dy, s.b}); }
Tensor by_b(const Kept& s) { return same("div_backward", s, MapOp::div, {s.dy, s.b}); }
Tensor by_divisor(const Kept& s) { return same("divisor_backward", s, MapOp::divisor_gradient, {s.dy, s.y, s.b}); }
Tensor by_base(const Kept& s) { return same("pow_backward", s, MapOp::pow_gradient, {s.dy, s.a, s.b}); }
Tensor by_exponent(const Kept& s) {
  return same("exponent_backward", s, MapOp::pow_exponent_gradient, {s.dy, s.y, s.a});
}

/// y := op(first, second, third), where x is one of the operands; dx := gradient(dy, saved, number).
struct UnaryOp {
  MapOp op, gradient;
  bool keeps_output;  // saved is y, else x
  float number = 0;   // constant of the gradient
};

Tensor unary(const char* name, const char* backward_name, const UnaryOp& op, const Tensor& x,
             std::initializer_list<Operand> operands) {
  Tensor y = computed(name, x.context(), x.shape(), x.dtype(), op.op, operands);
  record_op(y, name, {x}, {}, [op, backward_name, saved = op.keeps_output ? y.detach() : x.detach()](const Tensor& dy) {
    return std::vector<Tensor>{
        computed(backward_name, dy.context(), dy.shape(), dy.dtype(), op.gradient, {dy, saved, op.number})};
  });
  return y;
}
Tensor unary(const char* name, const char* backward_name, const UnaryOp& op, const Tensor& x) {
  require_float(name, "x", x);
  return unary(name, backward_name, op, x, {x});
}

/// y := op(operands), dx := factor dy.
Tensor linear_in(const char* name, const Tensor& x, MapOp op, std::initializer_list<Operand> operands, float factor) {
  Tensor y = computed(name, x.context(), x.shape(), x.dtype(), op, operands);
  record_op(y, name, {x}, {}, [factor](const Tensor& dy) {
    if (factor == 1.0f) return std::vector<Tensor>{dy};
    return std::vector<Tensor>{
        computed("factor_backward", dy.context(), dy.shape(), dy.dtype(), MapOp::mul, {dy, factor})};
  });
  return y;
}

Tensor mask_of(const char* name, const Tensor& a, const Shape& shape, MapOp op,
               std::initializer_list<Operand> operands) {
  return computed(name, a.context(), shape, a.dtype() == DType::i32 ? DType::f32 : a.dtype(), op, operands);
}

Tensor compared(const char* name, MapOp op, MapOp of_integers, const Tensor& a, const Tensor& b) {
  if (are_integers(a, b)) return integers(name, of_integers, {a, b}, {a, b});
  return mask_of(name, a, broadcast_shape(name, a, b), op, {a, b});
}

/// Elements chosen by a mask; of a and b at most one is empty, and its operand a number.
Tensor chosen(const Tensor& mask, const Shape& shape, const Tensor& a, const Tensor& b, const Operand& left,
              const Operand& right) {
  const std::optional<Shape> all = mask ? common_shape(mask.shape(), shape) : std::nullopt;
  if (!all)
    throw UsageError(fmt::format("op where: a mask {} for {}", mask ? mask.describe() : "that is empty", shape.str()),
                     "dims, from the last on, are alike, or one of them is 1: reshape the mask");
  Tensor y = computed("where", mask.context(), *all, (a ? a : b).dtype(), MapOp::where, {mask, left, right});
  const auto gradient = [mask = mask.detach()](const Tensor& dy, bool is_a, const Shape& to) {
    const Operand yes = is_a ? Operand(dy) : Operand(0.0f), no = is_a ? Operand(0.0f) : Operand(dy);
    return sum_to(computed("where_backward", dy.context(), dy.shape(), dy.dtype(), MapOp::where, {mask, yes, no}), to);
  };
  if (!a || !b) {
    record_op(y, "where", {a ? a : b}, {}, [gradient, is_a = static_cast<bool>(a), shape](const Tensor& dy) {
      return std::vector<Tensor>{gradient(dy, is_a, shape)};
    });
    return y;
  }
  record_op(y, "where", {a, b}, {}, [gradient, a_shape = a.shape(), b_shape = b.shape()](const Tensor& dy) {
    return std::vector<Tensor>{gradient(dy, true, a_shape), gradient(dy, false, b_shape)};
  });
  return y;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  if (are_integers(a, b)) return integers("add", MapOp::int_add, {a, b}, {a, b});
  const Shape shape = broadcast_shape("add", a, b);
  if (a.shape() != b.shape()) return binary("add", {MapOp::add, passed, passed, false, false}, a, b);
  require_float("add", "a", a);
  Context& context = a.context();
  Tensor y = Tensor::empty(context, shape, a.dtype());
  const Buffer out = y.buffer(), left = a.buffer(), right = b.buffer();
  context.launch({"add", {left, right}, {out}}, [&kernels = context.kernels(), out, left, right](ExecContext& exec) {
    kernels.add(exec, out, left, right);
  });
  record_op(y, "add", {a, b}, {}, [](const Tensor& dy) { return std::vector<Tensor>{dy, dy}; });
  return y;
}

Tensor sub(const Tensor& a, const Tensor& b) {
  if (are_integers(a, b)) return integers("sub", MapOp::int_sub, {a, b}, {a, b});
  return binary("sub", {MapOp::sub, passed, negated, false, false}, a, b);
}
Tensor mul(const Tensor& a, const Tensor& b) {
  if (are_integers(a, b)) return integers("mul", MapOp::int_mul, {a, b}, {a, b});
  return binary("mul", {MapOp::mul, times_b, times_a, true, false}, a, b);
}
Tensor div(const Tensor& a, const Tensor& b) { return binary("div", {MapOp::div, by_b, by_divisor, true, true}, a, b); }
Tensor pow(const Tensor& a, const Tensor& b) {
  return binary("pow", {MapOp::pow, by_base, by_exponent, true, true}, a, b);
}

Tensor add(const Tensor& a, float b) {
  if (is_integer(a)) return integers("add", MapOp::int_add, {a}, {a, integer_beside("add", a, b)});
  require_float("add", "a", a);
  return linear_in("add_number", a, MapOp::add, {a, b}, 1.0f);
}
Tensor sub(const Tensor& a, float b) {
  if (is_integer(a)) return integers("sub", MapOp::int_sub, {a}, {a, integer_beside("sub", a, b)});
  require_float("sub", "a", a);
  return linear_in("sub_number", a, MapOp::sub, {a, b}, 1.0f);
}
Tensor sub(float a, const Tensor& b) {
  if (is_integer(b)) return integers("sub", MapOp::int_sub, {b}, {integer_beside("sub", b, a), b});
  require_float("sub", "b", b);
  return linear_in("number_sub", b, MapOp::sub, {a, b}, -1.0f);
}
Tensor mul(const Tensor& a, float b) {
  if (is_integer(a)) return integers("mul", MapOp::int_mul, {a}, {a, integer_beside("mul", a, b)});
  require_float("mul", "a", a);
  return linear_in("mul_number", a, MapOp::mul, {a, b}, b);
}
Tensor div(const Tensor& a, float b) {
  require_float("div", "a", a);
  return linear_in("div_number", a, MapOp::div, {a, b}, 1.0f / b);
}
Tensor neg(const Tensor& x) {
  if (is_integer(x)) return 0.0f - x;
  require_float("neg", "x", x);
  return linear_in("neg", x, MapOp::mul, {x, -1.0f}, -1.0f);
}

Tensor div(float a, const Tensor& b) {
  require_float("div", "b", b);
  Tensor y = computed("number_div", b.context(), b.shape(), b.dtype(), MapOp::div, {a, b});
  record_op(y, "div", {b}, {}, [y = y.detach(), b = b.detach()](const Tensor& dy) {
    return std::vector<Tensor>{
        computed("divisor_backward", dy.context(), dy.shape(), dy.dtype(), MapOp::divisor_gradient, {dy, y, b})};
  });
  return y;
}

Tensor pow(const Tensor& a, float b) {
  require_float("pow", "a", a);
  Tensor y = computed("pow_number", a.context(), a.shape(), a.dtype(), MapOp::pow, {a, b});
  record_op(y, "pow", {a}, {}, [a = a.detach(), b](const Tensor& dy) {
    return std::vector<Tensor>{
        computed("pow_backward", dy.context(), dy.shape(), dy.dtype(), MapOp::pow_gradient, {dy, a, b})};
  });
  return y;
}

Tensor exp(const Tensor& x) { return unary("exp", "exp_backward", {MapOp::exp, MapOp::mul, true}, x); }
Tensor log(const Tensor& x) { return unary("log", "log_backward", {MapOp::log, MapOp::div, false}, x); }
Tensor sqrt(const Tensor& x) { return unary("sqrt", "sqrt_backward", {MapOp::sqrt, MapOp::sqrt_gradient, true}, x); }
Tensor rsqrt(const Tensor& x) {
  return unary("rsqrt", "rsqrt_backward", {MapOp::rsqrt, MapOp::rsqrt_gradient, true}, x);
}
Tensor tanh(const Tensor& x) { return unary("tanh", "tanh_backward", {MapOp::tanh, MapOp::tanh_gradient, true}, x); }
Tensor sin(const Tensor& x) { return unary("sin", "sin_backward", {MapOp::sin, MapOp::sin_gradient, false}, x); }
Tensor cos(const Tensor& x) { return unary("cos", "cos_backward", {MapOp::cos, MapOp::cos_gradient, false}, x); }
Tensor sigmoid(const Tensor& x) {
  return unary("sigmoid", "sigmoid_backward", {MapOp::sigmoid, MapOp::sigmoid_gradient, true}, x);
}
Tensor relu(const Tensor& x) { return unary("relu", "relu_backward", {MapOp::relu, MapOp::relu_gradient, true}, x); }
Tensor silu(const Tensor& x) { return unary("silu", "silu_backward", {MapOp::silu, MapOp::silu_gradient, false}, x); }
Tensor abs(const Tensor& x) { return unary("abs", "abs_backward", {MapOp::abs, MapOp::abs_gradient, false}, x); }

Tensor clamp(const Tensor& x, float low, float high) {
  require_float("clamp", "x", x);
  if (!(low <= high))
    throw UsageError(fmt::format("op clamp: between {} and {}", low, high), "give the lower one first");
  Tensor y = computed("clamp", x.context(), x.shape(), x.dtype(), MapOp::clamp, {x, low, high});
  record_op(y, "clamp", {x}, {}, [x = x.detach(), low, high](const Tensor& dy) {
    Context& context = dy.context();
    const Tensor inside = computed("within", context, x.shape(), x.dtype(), MapOp::within, {x, low, high});
    return std::vector<Tensor>{computed("clamp_backward", context, x.shape(), x.dtype(), MapOp::mul, {dy, inside})};
  });
  return y;
}

Tensor eq(const Tensor& a, const Tensor& b) { return compared("eq", MapOp::eq, MapOp::int_eq, a, b); }
Tensor eq(const Tensor& a, float b) { return mask_of("eq_number", a, a.shape(), MapOp::eq, {a, b}); }
Tensor lt(const Tensor& a, const Tensor& b) { return compared("lt", MapOp::lt, MapOp::int_lt, a, b); }
Tensor lt(const Tensor& a, float b) { return mask_of("lt_number", a, a.shape(), MapOp::lt, {a, b}); }
Tensor gt(const Tensor& a, const Tensor& b) { return compared("gt", MapOp::gt, MapOp::int_gt, a, b); }
Tensor gt(const Tensor& a, float b) { return mask_of("gt_number", a, a.shape(), MapOp::gt, {a, b}); }

Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  if (are_integers(a, b)) return integers_chosen(mask, {a, b}, a, b);
  const Shape shape = broadcast_shape("where", a, b);
  require_float("where", "a", a);
  return chosen(mask, shape, a, b, a, b);
}
Tensor where(const Tensor& mask, const Tensor& a, float b) {
  if (is_integer(a)) return integers_chosen(mask, {a}, a, integer_beside("where", a, b));
  require_float("where", "a", a);
  return chosen(mask, a.shape(), a, {}, a, b);
}
Tensor where(const Tensor& mask, float a, const Tensor& b) {
  if (is_integer(b)) return integers_chosen(mask, {b}, integer_beside("where", b, a), b);
  require_float("where", "b", b);
  return chosen(mask, b.shape(), {}, b, a, b);
}

}  // namespace zs
