// An op that a user of the library adds: its kernel is a lambda, its backward stands beside its forward.
#include <catch2/catch.hpp>

#include <cmath>

#include "tests/message_of.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::user_op_test {
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
                   [](Context&, const std::vector<Tensor>& x, const std::vector<Parameter*>& p) {
                     return scaled_square(x[0], *p[0]);
                   },
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

namespace {

/// How an op's backward gives its share of the parameter's gradient.
enum class Way { adds, overwrites, goes_by_beta, add_grad, add_grad_twice };

/// y := x * scale, elementwise.
Tensor scaled(const Tensor& x, Parameter& scale, Way way) {
  Context& context = x.context();
  const auto product = [&context](const Tensor& a, const Buffer& b, const Buffer& out) {
    context.launch({"product", {a.buffer(), b}, {out}}, [a = a.buffer(), b, out](ExecContext&) {
      for (std::int64_t i = 0; i < a.elems; ++i) out.as<float>()[i] = a.as<float>()[i] * b.as<float>()[i];
    });
  };
  Tensor y = Tensor::empty(context, x.shape(), DType::f32);
  product(x, scale.value(), y.buffer());
  record_op(y, "scaled", {x}, {&scale}, [x = x.detach(), &scale, way, product](const Tensor& dy) {
    Tensor dx = Tensor::empty(dy.context(), x.shape(), DType::f32),
           share = Tensor::empty(dy.context(), x.shape(), DType::f32);
    product(dy, scale.value(), dx.buffer());
    product(dy, x.buffer(), share.buffer());
    if (way == Way::add_grad || way == Way::add_grad_twice) {
      scale.add_grad(dy.context(), share);
      if (way == Way::add_grad_twice) scale.add_grad(dy.context(), cast(share, DType::bf16));
      return std::vector<Tensor>{dx};
    }
    const auto [target, beta] = scale.grad_target();
    const bool keeps = way == Way::adds || (way == Way::goes_by_beta && beta != 0);
    dy.context().launch({"give", {share.buffer(), target}, {target}},
                        [in = share.buffer(), out = target, keeps](ExecContext&) {
                          for (std::int64_t i = 0; i < in.elems; ++i)
                            out.as<float>()[i] = (keeps ? out.as<float>()[i] : 0) + in.as<float>()[i];
                        });
    return std::vector<Tensor>{dx};
  });
  return y;
}

}  // namespace

TEST_CASE("an op that adds to a gradient and one that overwrites it are both right, first or not") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  const Way first = GENERATE(Way::adds, Way::overwrites, Way::goes_by_beta, Way::add_grad),
            second = GENERATE(Way::adds, Way::overwrites, Way::goes_by_beta, Way::add_grad, Way::add_grad_twice);
  Parameter scale("scale", {2}, {}, true);
  PlainOwner owner(context);
  owner.add(scale, {3, 5});
  const Tensor x = Tensor::from_host(context, {2}, std::vector<float>{1, 2});
  // The later op of the two gives its share first.
  for (int step = 1; step <= 2; ++step) {
    backward(weighted_sum(scaled(scaled(x, scale, second), scale, first), {1, 1}));  // (x s^2)' = 2 x s
    const float shares = second == Way::add_grad_twice ? 1.5f : 1.0f;
    CHECK(owner.grad(scale).to_host() ==
          std::vector<float>{shares * 6 * static_cast<float>(step), shares * 20 * static_cast<float>(step)});
  }
}

TEST_CASE("a share that is not the parameter's, and none at all, name op and parameter") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Parameter scale("block.scale", {2}, {}, true);
  PlainOwner owner(context);
  owner.add(scale, {3, 5});
  const auto message_for = [&](const std::function<void(const Tensor& dy)>& give) {
    Tensor loss = Tensor::zeros(context, {}, DType::f32);
    record_op(loss, "giver", {}, {&scale}, [give](const Tensor& dy) {
      give(dy);
      return std::vector<Tensor>{};
    });
    return message_of([&] { backward(loss); });
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(message_for([](const Tensor&) {}), Contains("op giver gave parameter block.scale no gradient"));
  CHECK_THAT(message_for([&](const Tensor& dy) { scale.add_grad(context, dy); }),
             Contains("f32 ()") && Contains("block.scale (2)"));
  CHECK_THAT(message_for([&](const Tensor&) { scale.add_grad(context, Tensor::zeros(context, {2}, DType::i32)); }),
             Contains("i32 (2)"));

  scale.set_trainable(false);
  Tensor x = Tensor::from_host(context, {2}, std::vector<float>{1, 2});
  x.set_requires_grad();
  CHECK_THAT(message_of([&] {
               backward(weighted_sum(scaled(x, scale, Way::adds), {1, 1}));
             }),
             Contains("block.scale") && Contains("frozen"));
  backward(weighted_sum(scaled(x, scale, Way::add_grad), {1, 1}));
  CHECK(x.grad().to_host() == std::vector<float>{3, 5});
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

}  // namespace zs::test::user_op_test
