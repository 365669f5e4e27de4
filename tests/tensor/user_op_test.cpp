// An op that a user of the library adds: its kernel is a lambda, its backward stands beside its forward.
#include <catch2/catch.hpp>

#include <cmath>

#include "tests/tensor/gradient_check.h"

namespace zs::test {
namespace {

/// y (rows, C) := x^2 * scale (C), in f32.
Tensor scaled_square(const Tensor& x, Parameter& scale) {
  Context& context = x.context();
  const std::int64_t width = scale.numel();
  Tensor y = Tensor::empty(context, x.shape(), DType::f32);
  const Buffer out = y.buffer(), in = x.buffer(), factors = scale.value();
  context.launch({"scaled_square", {in, factors}, {out}}, [out, in, factors, width](ExecContext&) {
    for (std::int64_t i = 0; i < in.elems; ++i) {
      const float value = in.as<float>()[i];
      out.as<float>()[i] = value * value * factors.as<float>()[i % width];
    }
  });
  record_op(y, "scaled_square", {x}, {&scale}, [x = x.detach(), &scale, width](const Tensor& dy) {
    Context& context = dy.context();
    Tensor dx = Tensor::empty(context, x.shape(), DType::f32);
    const auto dscale = scale.grad_target();
    const Buffer out = dx.buffer(), grad = dy.buffer(), in = x.buffer(), factors = scale.value();
    context.launch({"scaled_square_backward", {grad, in, factors, dscale.buffer}, {out, dscale.buffer}},
                   [out, grad, in, factors, dscale, width](ExecContext&) {
                     float* sums = dscale.buffer.as<float>();
                     for (std::int64_t c = 0; c < width; ++c) sums[c] = dscale.beta == 0 ? 0 : sums[c];
                     for (std::int64_t i = 0; i < in.elems; ++i) {
                       const float value = in.as<float>()[i], dvalue = grad.as<float>()[i];
                       out.as<float>()[i] = 2 * value * factors.as<float>()[i % width] * dvalue;
                       sums[i % width] += value * value * dvalue;
                     }
                   });
    return std::vector<Tensor>{dx};
  });
  return y;
}

Values scaled_square(const Values& x, const Values& scale) {
  Values y;
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * x[i] * scale[i % scale.size()]);
  return y;
}

}  // namespace

TEST_CASE("I8: the gradients of an op defined by a user agree with central differences") {
  check_gradients({{normal({5, 7}, "x")},
                   {normal({7}, "scale")},
                   [](Context&, const std::vector<Tensor>& x, const std::vector<Parameter*>& p) { return scaled_square(x[0], *p[0]); },
                   [](const std::vector<Values>& a) { return scaled_square(a[0], a[1]); }},
                  kF32);
}

TEST_CASE("I8: an op defined by a user mixes with the library's, and its parameter may be used twice") {
  check_gradients({{normal({4, 6}, "x", 0.5)},
                   {normal({6}, "scale"), normal({6, 6}, "weight", 0.3)},
                   [](Context&, const std::vector<Tensor>& x, const std::vector<Parameter*>& p) {
                     const Tensor h = linear(scaled_square(x[0], *p[0]), *p[1], nullptr);
                     return add(scaled_square(h, *p[0]), x[0]);
                   },
                   [](const std::vector<Values>& a) {
                     const Values h = ref::linear(scaled_square(a[0], a[1]), a[2], nullptr, 6);
                     return ref::add(scaled_square(h, a[1]), a[0]);
                   }},
                  kF32);
}

TEST_CASE("an op defined by a user appears in the trace with its buffers, on the meta device too") {
  const auto device = Device::create(DeviceKind::meta, {});
  Context context(*device);
  Parameter scale("scale", {3}, {}, true);
  PlainOwner owner(context);
  owner.add(scale, {1, 2, 3});
  const Tensor x = Tensor::zeros(context, {2, 3}, DType::f32);
  device->trace().start();
  const Tensor y = scaled_square(x, scale);
  REQUIRE(device->trace().entries().size() == 2);  // the output's memory, the op
  const OpInfo& op = device->trace().entries().back().op;
  CHECK(op.name == "scaled_square");
  REQUIRE(op.reads.size() == 2);
  CHECK(op.reads[0].data == x.buffer().data);
  CHECK(op.reads[1].data == scale.value().data);
  REQUIRE(op.writes.size() == 1);
  CHECK(op.writes[0].data == y.buffer().data);
}

}  // namespace zs::test
