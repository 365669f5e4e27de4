// Norms that take a residual in, and gradients that an op's backward adds to in its own pass.
#include <catch2/catch.hpp>

#include <algorithm>

#include "runtime/tensor/recompute.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::norm_test {
namespace {

using Floats = std::vector<float>;
using Strings = std::vector<std::string>;
using Tensors = std::vector<Tensor>;

const Shape kShape{3, 7, 33};

Floats drawn(const Shape& shape, const char* name) { return to_floats(normal(shape, name).values); }

/// x, a residual and the parameters of a norm.
struct Machine {
  explicit Machine(DType dtype, DeviceKind kind = DeviceKind::cpu)
      : device(Device::create(kind, {.threads = 2, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        owner(context, dtype, DType::f32),
        x(leaf("x", dtype)),
        residual(leaf("residual", dtype)) {
    owner.add(gamma, drawn(gamma.shape(), "gamma"));
    owner.add(beta, drawn(beta.shape(), "beta"));
  }
  Tensor leaf(const char* name, DType dtype) {
    Tensor tensor = Tensor::from_host(context, kShape, drawn(kShape, name), dtype);
    tensor.set_requires_grad();
    return tensor;
  }
  Tensor norm(const Tensor& in, bool is_layer) { return is_layer ? layer_norm(in, gamma, beta) : rms_norm(in, gamma); }
  SumAndNorm add_norm(const Tensor& in, const Tensor& added, bool is_layer) {
    return is_layer ? add_layer_norm(in, added, gamma, beta) : add_rms_norm(in, added, gamma);
  }

  std::unique_ptr<Device> device;
  Context context;
  Parameter gamma{"gamma", {kShape[-1]}, Init{}, true},
      beta{"beta", {kShape[-1]}, Init{}, true};  // outlive their owner
  PlainOwner owner;
  Tensor x, residual;
};

std::ptrdiff_t count_of(const Strings& names, const char* name) { return std::count(names.begin(), names.end(), name); }

/// Which of the two results goes into the loss.
enum class Used { both, sum, norm };

Tensor loss_of(const SumAndNorm& result, Used used) {
  const Tensor y = used == Used::both  ? add(result.sum, gelu(result.y, GeluKind::tanh))
                   : used == Used::sum ? result.sum
                                       : result.y;
  return weighted_sum(y, drawn(kShape, "weights"));
}

using Body = std::function<SumAndNorm(Machine& machine, const Tensor& x, const Tensor& residual)>;

/// The loss and every gradient, empty where there is none.
std::vector<Floats> gradients(DType dtype, Used used, bool recomputes, const Body& body) {
  Machine machine(dtype);
  const auto run = [&](const Tensors& in) { return loss_of(body(machine, in[0], in[1]), used); };
  const Tensor loss = recomputes ? recompute({machine.x, machine.residual}, run) : run({machine.x, machine.residual});
  backward(loss);
  std::vector<Floats> all{loss.to_host(), machine.x.grad().to_host(), machine.residual.grad().to_host()};
  for (Parameter* parameter : {&machine.gamma, &machine.beta}) {
    const bool is_written = parameter->grad().data != nullptr && parameter->is_grad_written();
    all.push_back(is_written ? machine.owner.grad(*parameter).to_host() : Floats{});
  }
  return all;
}

OpUnderTest sum_op(bool is_layer, Used used) {
  const Shape shape{5, 19}, width{19};
  OpUnderTest op{{normal(shape, "x"), normal(shape, "residual")}, {normal(width, "gamma", 0.5, 1)}, {}, {}};
  if (is_layer) op.parameters.push_back(normal(width, "beta"));
  op.run = [=](Context&, const Tensors& x, const std::vector<Parameter*>& p) {
    const SumAndNorm result = is_layer ? add_layer_norm(x[0], x[1], *p[0], *p[1]) : add_rms_norm(x[0], x[1], *p[0]);
    return used == Used::both ? add(result.sum, result.y) : used == Used::sum ? result.sum : result.y;
  };
  op.reference = [=](const std::vector<Values>& a) {
    const Values sum = ref::add(a[0], a[1]),
                 y = is_layer ? ref::layer_norm(sum, a[2], a[3], 1e-5) : ref::rms_norm(sum, a[2], 1e-5);
    return used == Used::both ? ref::add(sum, y) : used == Used::sum ? sum : y;
  };
  return op;
}

}  // namespace

TEST_CASE("I8: the gradients of a sum and its norm agree with central differences, whichever of them is used") {
  const Used used = GENERATE(Used::both, Used::norm);
  const bool is_layer = GENERATE(true, false);
  for (const Precisions& precisions : {kF32, kBf16, kBf16Grads}) check_gradients(sum_op(is_layer, used), precisions);
}

TEST_CASE("a sum and its norm in one pass have the bits, forward and backward, of one op after the other") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const Used used = GENERATE(Used::both, Used::sum, Used::norm);
  const bool is_layer = GENERATE(true, false), recomputes = GENERATE(false, true);
  // Behind a reshape no gradient has come yet when the norm's backward runs: the two are added by an op.
  const auto apart = gradients(dtype, used, false, [=](Machine& machine, const Tensor& x, const Tensor& residual) {
    const Tensor sum = add(x, residual);
    return SumAndNorm{sum, machine.norm(sum.reshape(sum.shape()), is_layer)};
  });
  const auto together =
      gradients(dtype, used, recomputes, [=](Machine& machine, const Tensor& x, const Tensor& residual) {
        return machine.add_norm(x, residual, is_layer);
      });
  CHECK(together == apart);
  CHECK(together[3].empty() == (used == Used::sum));
}

TEST_CASE("a norm's backward adds in place what has come past it, and no other op does") {
  const bool is_layer = GENERATE(true, false);
  Machine machine(DType::f32, DeviceKind::meta);
  const Tensor loss = loss_of(machine.add_norm(machine.x, machine.residual, is_layer), Used::both);
  machine.device->trace().start();
  backward(loss);
  const Strings names = names_of_ops(*machine.device);
  CHECK(count_of(names, "add_gradients") == 0);
  const char* const name = is_layer ? "layer_norm_backward" : "rms_norm_backward";
  REQUIRE(count_of(names, name) == 1);
  for (const TraceEntry& entry : machine.device->trace().entries()) {
    if (entry.op.name != name) continue;
    const void* const out = entry.op.writes[0].data;
    CHECK(std::count_if(entry.op.reads.begin(), entry.op.reads.end(),
                        [=](const Buffer& read) { return read.data == out; }) == 1);
  }
}

TEST_CASE("a gradient that others see as well is left as it is by the backward that adds to it") {
  const bool is_layer = GENERATE(true, false);
  Machine machine(DType::f32);
  backward(weighted_sum(machine.x, drawn(kShape, "first")));
  const Tensor first = machine.x.grad();
  backward(weighted_sum(machine.norm(machine.x, is_layer), drawn(kShape, "second")));
  CHECK(first.to_host() == drawn(kShape, "first"));

  Machine alone(DType::f32);
  backward(weighted_sum(alone.norm(alone.x, is_layer), drawn(kShape, "second")));
  Floats expected = alone.x.grad().to_host();
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += drawn(kShape, "first")[i];
  CHECK(machine.x.grad().to_host() == expected);
}

TEST_CASE("a norm of an input that wants no gradient gives its parameters theirs") {
  Machine machine(DType::f32);
  const Tensor x = machine.x.detach();
  const SumAndNorm result = machine.add_norm(x, x, true);
  CHECK_FALSE(result.sum.requires_grad());
  backward(weighted_sum(result.y, drawn(kShape, "weights")));
  CHECK(machine.gamma.is_grad_written());
  CHECK(machine.beta.is_grad_written());
}

TEST_CASE("a residual that is not as the norm's input is refused by the norm's name") {
  Machine machine(DType::f32);
  CHECK_THROWS_WITH(machine.add_norm(machine.x, machine.leaf("other", DType::bf16), true),
                    Catch::Contains("norm gamma of the sum of f32") && Catch::Contains("bf16"));
}

}  // namespace zs::test::norm_test
