#include "runtime/tensor/pointwise.h"

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
Tensor ge(const Tensor& a, const Tensor& b) { return add(gt(a, b), eq(a, b)); }
Tensor ge(const Tensor& a, float b) { return add(gt(a, b), eq(a, b)); }
Tensor le(const Tensor& a, const Tensor& b) { return add(lt(a, b), eq(a, b)); }
Tensor le(const Tensor& a, float b) { return add(lt(a, b), eq(a, b)); }
Tensor ne(const Tensor& a, const Tensor& b) { return logical_not(eq(a, b)); }
Tensor ne(const Tensor& a, float b) { return logical_not(eq(a, b)); }
Tensor logical_not(const Tensor& mask) { return eq(mask, 0.0f); }

Tensor maximum(const Tensor& a, const Tensor& b) {
  if (a && a.dtype() == DType::i32) return where(gt(a, b), a, b);
  return where(add(gt(a, b), ne(a, a)), a, b);
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  if (a && a.dtype() == DType::i32) return where(lt(a, b), a, b);
  return where(add(lt(a, b), ne(a, a)), a, b);
}

Tensor square(const Tensor& x) { return mul(x, x); }

Tensor leaky_relu(const Tensor& x, float slope) {
  require_float("leaky_relu", "x", x);
  return where(gt(x, 0.0f), x, x * slope);
}

Tensor elu(const Tensor& x, float alpha) {
  require_float("elu", "x", x);
  return where(gt(x, 0.0f), x, (exp(neg(relu(neg(x)))) - 1.0f) * alpha);
}

Tensor softplus(const Tensor& x) {
  require_float("softplus", "x", x);
  const Tensor wide = cast(x, DType::f32);
  Tensor y;
  {
    const NoGradGuard guard(x.context());
    const Tensor power = exp(neg(abs(wide))), all = power + 1.0f;
    // log(1 + power) to the last places, however small power is
    y = relu(wide) + where(eq(all, 1.0f), power, log(all) * power / (all - 1.0f));
  }
  record_op(y, "softplus", {wide}, {}, [wide = wide.detach()](const Tensor& dy) {
    const NoGradGuard guard(dy.context());
    return std::vector<Tensor>{dy * sigmoid(wide)};
  });
  return cast(y, x.dtype());
}

Tensor log_sigmoid(const Tensor& x) {
  require_float("log_sigmoid", "x", x);
  return neg(softplus(neg(x)));
}

}  // namespace zs
