#include "runtime/tensor/recompute.h"

#include <catch2/catch.hpp>

#include "tests/tensor/recompute_machine.h"

namespace zs::test::recompute_test {
namespace {

using Parameters = std::vector<Parameter*>;
using Strings = std::vector<std::string>;

/// Every gradient of a small graph: two inputs that are used before, several times within and after the function, a
/// parameter that is used within and outside, another call inside.
std::vector<Floats> gradients(const Caller& outer, const Caller& inner, DType dtype) {
  RecomputeMachine machine(dtype);
  Tensor x = machine.leaf("x", dtype), z = machine.leaf("z", dtype);
  const Tensor h = machine.through(x, 0);
  const auto within = [&](const Tensors& in) {
    const Tensor a = gelu(machine.through(in[0], 0), GeluKind::tanh);
    const Tensor b = inner({a, in[1]}, [&](const Tensors& deep) {
      return add(machine.through(deep[0], 1), gelu(deep[1], GeluKind::erf));
    });
    return add(add(machine.through(in[0], 2), b), add(in[0], machine.through(b, 1)));
  };
  const Tensor y = outer({h, z}, within);
  backward(sum_of(add(add(machine.through(y, 0), machine.through(h, 3)), gelu(z, GeluKind::erf))));
  std::vector<Floats> all{x.grad().to_host(), z.grad().to_host()};
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(machine.weights[i]->pending_uses() == 0);
    all.push_back(machine.grad(i));
  }
  return all;
}

}  // namespace

TEST_CASE("I8: gradients through a recomputed function agree with central differences") {
  for (const Precisions& precisions : {kF32, kBf16, kBf16Grads}) {
    check_gradients({{normal({kRows, kWidth}, "x"), normal({kRows, kWidth}, "z")},
                     {normal({kWidth, kWidth}, "weight", 0.4), normal({kWidth}, "bias")},
                     [](Context&, const Tensors& x, const Parameters& p) {
                       return recompute({x[0], x[1]}, [=](const Tensors& in) {
                         return add(gelu(linear(in[0], *p[0], p[1]), GeluKind::tanh), in[1]);
                       });
                     },
                     [](const std::vector<Values>& a) {
                       return ref::add(ref::gelu(ref::linear(a[0], a[2], &a[3], kWidth), GeluKind::tanh), a[1]);
                     }},
                    precisions);
  }
}

TEST_CASE("gradients are the same bits as without recomputing, nested too") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::vector<Floats> plain = gradients(kPlain, kPlain, dtype);
  for (const Floats& gradient : plain) CHECK_FALSE(gradient.empty());
  CHECK(gradients(kRecomputed, kPlain, dtype) == plain);
  CHECK(gradients(kPlain, kRecomputed, dtype) == plain);
  CHECK(gradients(kRecomputed, kRecomputed, dtype) == plain);
}

TEST_CASE("only the inputs of a recomputed function are kept, and one function at a time is recorded") {
  RecomputeMachine machine(DType::f32, GENERATE(DeviceKind::cpu, DeviceKind::meta));
  constexpr std::int64_t kTensor = (kRows * kWidth * 4 + 63) / 64 * 64;
  const std::int64_t before = machine.activations();
  const auto inner_layers = [&](const Tensors& in) {
    Tensor h = in[0];
    for (std::size_t i = 0; i < 5; ++i) h = gelu(machine.through(h, i), GeluKind::tanh);
    return h;
  };
  Tensor y = machine.leaf("x");
  for (int i = 0; i < 4; ++i) y = recompute({y}, inner_layers);
  const Tensor loss = sum_of(y);
  y = {};
  // The input of each of the four, the weights of the sum, the loss. What the last one gave is not needed again.
  CHECK(machine.activations() - before == (4 + 1) * kTensor + 64);
  machine.device->memory().reset_peak();
  backward(loss);
  // The four inputs; what one function records more, the inputs of its five products and five GELUs, the first of which
  // is its own; a gradient that comes and one that goes. Where all is kept it would be four times those nine.
  const std::int64_t gradients = 5 * Pool::rounded(kWidth * kWidth * 4);
  CHECK(machine.device->memory().peak_bytes() - before == (4 + 9 + 2) * kTensor + 64 + gradients);
  machine.device->synchronize();
}

TEST_CASE("a recomputed function runs once more, and only when a gradient arrives") {
  RecomputeMachine machine;
  Tensor x = machine.leaf("x");
  int runs = 0;
  const auto counted = [&](const Tensors& in) {
    ++runs;
    return machine.through(in[0], 0);
  };
  const Tensor used = recompute({x}, counted), ignored = recompute({x}, counted);
  CHECK(runs == 2);
  Tensor loss = Tensor::zeros(machine.context, {}, DType::f32);
  record_op(loss, "ignores_one", {used, ignored}, {}, [w = machine.tensor("w")](const Tensor&) {
    return Tensors{w, no_gradient()};
  });
  backward(loss);
  CHECK(runs == 3);
  CHECK(machine.weights[0]->pending_uses() == 0);
}

TEST_CASE("nested functions run once more for each level above them, and give their uses back") {
  RecomputeMachine machine;
  Tensor x = machine.leaf("x");
  int runs = 0;
  const auto innermost = [&](const Tensors& in) {
    ++runs;
    return gelu(machine.through(in[0], 0), GeluKind::tanh);
  };
  const auto middle = [&](const Tensors& in) { return recompute({in[0]}, innermost); };
  const Tensor y = recompute({x}, [&](const Tensors& in) { return recompute({in[0]}, middle); });
  CHECK(runs == 1);
  CHECK(machine.weights[0]->pending_uses() == 1);
  backward(sum_of(y));
  CHECK(runs == 4);
  CHECK(machine.weights[0]->pending_uses() == 0);
}

TEST_CASE("inputs of a recomputed function that want no gradient get none, and cost none") {
  RecomputeMachine machine;
  const Tensor x = machine.tensor("x");
  Tensor z = machine.leaf("z");
  const Tensor y = recompute({x, z}, [&](const Tensors& in) { return add(machine.through(in[0], 0), in[1]); });
  machine.device->trace().start();
  backward(sum_of(y));
  for (const std::string& op : names_of_ops(*machine.device)) CHECK(op != "linear_dx");
  CHECK_FALSE(x.grad());
  CHECK(z.grad());
  CHECK_FALSE(machine.grad(0).empty());
}

TEST_CASE("a function that nothing in wants a gradient is not recorded") {
  RecomputeMachine machine;
  const Tensor x = machine.tensor("x");
  CHECK_FALSE(recompute({x}, [](const Tensors& in) { return gelu(in[0], GeluKind::tanh); }).requires_grad());
  const NoGradGuard guard(machine.context);
  CHECK_FALSE(
      recompute({machine.leaf("y")}, [&](const Tensors& in) { return machine.through(in[0], 0); }).requires_grad());
  CHECK(machine.weights[0]->pending_uses() == 0);
}

TEST_CASE("a part of a recomputed function that is not recorded gets no gradient") {
  RecomputeMachine machine;
  Tensor x = machine.leaf("x");
  const Tensor y = recompute({x}, [&](const Tensors& in) {
    const NoGradGuard guard(machine.context);
    return machine.through(in[0], 1);
  });
  CHECK_FALSE(machine.owner.grad(*machine.weights[1]));
  CHECK(machine.weights[1]->pending_uses() == 0);
  backward(sum_of(add(y, x)));
  CHECK(x.grad().to_host() == to_floats(normal({kRows, kWidth}, "sum").values));
  CHECK_FALSE(machine.owner.grad(*machine.weights[1]));
}

TEST_CASE("a function that gives its input back passes the gradient on, and nothing before it runs twice") {
  RecomputeMachine machine, plain;
  Tensor x = machine.leaf("x"), plain_x = plain.leaf("x");
  const auto identity = [](const Tensors& in) { return in[0]; };
  backward(sum_of(recompute({recompute({machine.through(x, 0)}, identity).reshape({kWidth, kRows})}, identity)));
  backward(sum_of(plain.through(plain_x, 0).reshape({kWidth, kRows})));
  CHECK(x.grad().to_host() == plain_x.grad().to_host());
  CHECK(machine.grad(0) == plain.grad(0));
  CHECK(machine.weights[0]->pending_uses() == 0);
}

TEST_CASE("owners hear of a recomputed function's parameters before it runs again, then of every op in it") {
  RecomputeMachine machine;
  LoggingOwner owner(machine.context);
  Parameter a("a", {kWidth, kWidth}, {}, true), b("b", {kWidth, kWidth}, {}, true);
  for (Parameter* p : {&a, &b}) owner.add(*p, Floats(kWidth * kWidth, 0.5f));
  const Tensor x = machine.tensor("x");
  const Tensor y = recompute({x}, [&](const Tensors& in) {
    CHECK(owner.log.size() == (machine.context.mode().runs_again ? 2 : 0));
    return linear(linear(linear(in[0], a, nullptr), b, nullptr), a, nullptr);
  });
  CHECK(a.pending_uses() == 1);
  CHECK(b.pending_uses() == 1);
  backward(sum_of(y));
  // Its own two uses are over once the three of its ops are known.
  CHECK(owner.log == Strings{"before a 1", "before b 1", "after a 2 unwritten", "after b 1 unwritten", "before a 2",
                             "after a 1", "before b 1", "after b 0", "before a 1", "after a 0"});
}

TEST_CASE("the last part of a function is recorded again, but not computed again") {
  RecomputeMachine machine;
  Tensor x = machine.leaf("x");
  const auto body = [&](const Tensors& in) { return Tensors{in[0], gelu(machine.through(in[0], 0), GeluKind::tanh)}; };
  const auto last = [&](const Tensors& in) { return add(in[0], machine.through(in[1], 1)).reshape({kRows * kWidth}); };
  const Tensor y = recompute({x}, body, last);
  CHECK(machine.context.mode().unfilled == nullptr);
  machine.device->trace().start();
  backward(sum_of(y));
  machine.device->trace().stop();
  std::size_t products = 0;
  for (const std::string& op : names_of_ops(*machine.device)) {
    CHECK(op != "add");
    products += op == "linear" ? 1 : 0;
  }
  CHECK(products == 1);

  RecomputeMachine plain;
  Tensor plain_x = plain.leaf("x");
  backward(sum_of(
      add(plain_x, plain.through(gelu(plain.through(plain_x, 0), GeluKind::tanh), 1)).reshape({kRows * kWidth})));
  CHECK(x.grad().to_host() == plain_x.grad().to_host());
  CHECK(machine.grad(0) == plain.grad(0));
  CHECK(machine.grad(1) == plain.grad(1));
}

TEST_CASE("a last part may be recomputed itself") {
  RecomputeMachine machine;
  Tensor x = machine.leaf("x");
  const auto body = [&](const Tensors& in) { return Tensors{machine.through(in[0], 0)}; };
  const auto deep = [&](const Tensors& in) { return gelu(machine.through(in[0], 1), GeluKind::tanh); };
  backward(sum_of(recompute({x}, body, [&](const Tensors& in) { return recompute({in[0]}, deep); })));

  RecomputeMachine plain;
  Tensor plain_x = plain.leaf("x");
  backward(sum_of(gelu(plain.through(plain.through(plain_x, 0), 1), GeluKind::tanh)));
  CHECK(x.grad().to_host() == plain_x.grad().to_host());
  CHECK(machine.grad(1) == plain.grad(1));
}

TEST_CASE("a chain of recomputed functions of any length is walked and dropped without a deep recursion") {
  const auto device = Device::create(DeviceKind::meta, {});
  Context context(*device);
  const bool is_walked = GENERATE(false, true);
  Tensor x = Tensor::empty(context, {1}, DType::f32);
  x.set_requires_grad();
  Tensor h = x;
  for (int i = 0; i < 100'000; ++i) h = recompute({h}, [](const Tensors& in) { return in[0].reshape({1}); });
  if (is_walked) backward(h.reshape({}));
  h = {};
  CHECK(x.autograd().use_count() == 1);
}

TEST_CASE(
    "I4: a recomputed function counts the same bytes and enqueues the same ops on the meta device as on the cpu") {
  const auto run = [](DeviceKind kind) {
    RecomputeMachine machine(DType::f32, kind);
    machine.device->memory().reset_peak();
    machine.device->trace().start();
    const auto body = [&](const Tensors& in) { return Tensors{gelu(machine.through(in[0], 0), GeluKind::tanh)}; };
    backward(
        sum_of(recompute({machine.leaf("x")}, body, [&](const Tensors& in) { return machine.through(in[0], 1); })));
    machine.device->trace().stop();
    machine.device->synchronize();
    for (const OrderViolation& violation : verify_order(machine.device->trace().entries()))
      FAIL_CHECK(violation.message);
    return std::pair(machine.device->memory().peak_bytes(), names_of_ops(*machine.device));
  };
  CHECK(run(DeviceKind::cpu) == run(DeviceKind::meta));
}

}  // namespace zs::test::recompute_test
