#include "runtime/tensor/autograd.h"

#include <catch2/catch.hpp>

#include "runtime/tensor/ops.h"
#include "tests/message_of.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::autograd_test {
namespace {

using Catch::Matchers::Contains;
using Floats = std::vector<float>;

/// A CPU device with a context. Small whole numbers keep every sum exact.
struct Machine {
  std::unique_ptr<Device> device = Device::create(DeviceKind::cpu, {.threads = 2, .cpus = {}, .sync_timeout_s = 60});
  Context context{*device};

  Tensor leaf(Floats values) {
    const auto count = static_cast<std::int64_t>(values.size());
    Tensor tensor = Tensor::from_host(context, {count}, std::move(values));
    tensor.set_requires_grad();
    return tensor;
  }
};

/// A copy that is not a leaf: it has a producer that collects its gradient.
Tensor interior(const Tensor& x) { return x.reshape(x.shape()); }

}  // namespace

TEST_CASE("a tensor that two ops consumed gets the sum of both gradients") {
  Machine machine;
  Tensor x = machine.leaf({1, 2, 3});
  const Tensor h = interior(x);
  backward(add(weighted_sum(h, {1, 2, 4}), weighted_sum(h, {10, 20, 40})));
  CHECK(x.grad().to_host() == Floats{11, 22, 44});
}

TEST_CASE("a leaf that two ops consumed gets the sum of both gradients") {
  Machine machine;
  Tensor x = machine.leaf({1, 2, 3});
  backward(add(weighted_sum(x, {1, 2, 4}), weighted_sum(x, {10, 20, 40})));
  CHECK(x.grad().to_host() == Floats{11, 22, 44});
}

TEST_CASE("gradients of several walks add up in a leaf") {
  Machine machine;
  Tensor x = machine.leaf({1, 2});
  backward(weighted_sum(x, {1, 2}));
  const Tensor first = x.grad();
  backward(weighted_sum(x, {10, 20}));
  CHECK(x.grad().to_host() == Floats{11, 22});
  CHECK(first.to_host() == Floats{1, 2});  // a handle that the caller kept is not written to
}

TEST_CASE("a tensor added to itself gets twice the gradient") {
  Machine machine;
  const bool is_leaf = GENERATE(true, false);
  Tensor x = machine.leaf({1, 2, 3});
  const Tensor h = is_leaf ? x : interior(x);
  backward(weighted_sum(add(h, h), {1, 2, 3}));
  CHECK(x.grad().to_host() == Floats{2, 4, 6});
}

TEST_CASE("adding in place never writes to a gradient that another tensor shares") {
  Machine machine;
  Tensor x = machine.leaf({1, 2}), y = machine.leaf({3, 4});
  const bool are_leaves = GENERATE(true, false);
  const Tensor a = are_leaves ? x : interior(x), b = are_leaves ? y : interior(y);
  // Newest first: the sum hands one storage to a and b, then each gets a second gradient of its own.
  const Tensor to_b = weighted_sum(b, {100, 200}), to_a = weighted_sum(a, {10, 20});
  const Tensor sum = weighted_sum(add(a, b), {1, 2});
  backward(add(sum, add(to_a, to_b)));
  CHECK(x.grad().to_host() == Floats{11, 22});
  CHECK(y.grad().to_host() == Floats{101, 202});
}

TEST_CASE("the weights that an op hands out as a gradient stay as they were") {
  Machine machine;
  Tensor x = machine.leaf({1, 2});
  const Tensor h = interior(x);
  const Tensor shared = Tensor::from_host(machine.context, {2}, Floats{5, 6});
  Tensor first = Tensor::zeros(machine.context, {}, DType::f32),
         second = Tensor::zeros(machine.context, {}, DType::f32);
  for (Tensor* loss : {&first, &second}) {
    record_op(*loss, "constant_gradient", {h}, {}, [shared](const Tensor&) { return std::vector<Tensor>{shared}; });
  }
  backward(add(first, second));
  CHECK(x.grad().to_host() == Floats{10, 12});
  CHECK(shared.to_host() == Floats{5, 6});
}

TEST_CASE("a residual chain sums both paths at every step") {
  Machine machine;
  Tensor x = machine.leaf({1, 2});
  Tensor h = interior(x);
  for (int i = 0; i < 10; ++i) h = add(h, interior(h));
  backward(weighted_sum(h, {1, 3}));
  CHECK(x.grad().to_host() == Floats{1024, 3072});
}

TEST_CASE("the seed is the gradient of the loss") {
  Machine machine;
  Tensor x = machine.leaf({1, 2, 3});
  const Tensor y = x.reshape({1, 3});
  Parameter weight("weight", {1, 3}, {}, true);
  PlainOwner owner(machine.context);
  owner.add(weight, {4, 5, 6});
  backward(linear(y, weight, nullptr).reshape({}), 0.25f);
  CHECK(x.grad().to_host() == Floats{1, 1.25f, 1.5f});
  CHECK(owner.grad(weight).to_host() == Floats{0.25f, 0.5f, 0.75f});
}

TEST_CASE("a parameter used twice overwrites what its gradient buffer held, then adds") {
  Machine machine;
  Parameter weight("weight", {2, 2}, {}, true);
  LoggingOwner owner(machine.context);
  owner.add(weight, {1, 0, 0, 1});
  const Tensor x = Tensor::from_host(machine.context, {1, 2}, Floats{1, 2});
  const Tensor y = linear(linear(x, weight, nullptr), weight, nullptr);
  CHECK(weight.pending_uses() == 2);
  backward(weighted_sum(y, {10, 100}));
  // Both uses see the input (1, 2) and the gradient (10, 100), because the weight is the identity.
  CHECK(owner.grad(weight).to_host() == Floats{20, 40, 200, 400});
  CHECK(owner.log ==
        std::vector<std::string>{"before weight 2", "after weight 1", "before weight 1", "after weight 0"});
}

TEST_CASE("a parameter's gradient goes on over several micro-batches until its buffer is unbound") {
  Machine machine;
  Parameter weight("weight", {1, 2}, {}, true);
  PlainOwner owner(machine.context);
  owner.add(weight, {1, 1});
  const Tensor x = Tensor::from_host(machine.context, {1, 2}, Floats{1, 2});
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) backward(linear(x, weight, nullptr).reshape({}));
  CHECK(owner.grad(weight).to_host() == Floats{3, 6});
  owner.clear_gradients();
  backward(linear(x, weight, nullptr).reshape({}));
  CHECK(owner.grad(weight).to_host() == Floats{1, 2});
}

TEST_CASE("owners are called around each op, newest first, and the last call finds no use pending") {
  Machine machine;
  Parameter w1("w1", {2, 2}, {}, true), b1("b1", {2}, {}, false), w2("w2", {1, 2}, {}, true);
  LoggingOwner owner(machine.context);
  owner.add(w1, {1, 2, 3, 4});
  owner.add(b1, {1, 1});
  owner.add(w2, {1, 1});
  const Tensor x = Tensor::from_host(machine.context, {1, 2}, Floats{1, 2});
  const Tensor loss = linear(linear(x, w1, &b1), w2, nullptr).reshape({});
  CHECK(owner.log.empty());
  backward(loss);
  CHECK(owner.log == std::vector<std::string>{"before w2 1", "after w2 0", "before w1 1", "before b1 1", "after w1 0",
                                              "after b1 0"});
}

TEST_CASE("a parameter whose op got no gradient is still told, so that its owner can count uses") {
  Machine machine;
  Parameter weight("weight", {2, 2}, {}, true);
  LoggingOwner owner(machine.context);
  owner.add(weight, {1, 2, 3, 4});
  const Tensor x = Tensor::from_host(machine.context, {1, 2}, Floats{1, 2});
  const Tensor ignored = linear(x, weight, nullptr);
  Tensor other = machine.leaf({1, 2});
  Tensor loss = Tensor::zeros(machine.context, {}, DType::f32);
  record_op(loss, "ignores_one", {ignored, other}, {}, [w = machine.leaf({7, 8}).detach()](const Tensor&) {
    return std::vector<Tensor>{no_gradient(), w};
  });
  backward(loss);
  CHECK(other.grad().to_host() == Floats{7, 8});
  CHECK(owner.log == std::vector<std::string>{"before weight 1", "after weight 0 unwritten"});
}

TEST_CASE("inputs that want no gradient get none, and cost none") {
  Machine machine;
  Parameter weight("weight", {2, 2}, {}, true);
  PlainOwner owner(machine.context);
  owner.add(weight, {1, 2, 3, 4});
  Tensor x = Tensor::from_host(machine.context, {1, 2}, Floats{1, 2});
  const Tensor y = linear(x, weight, nullptr);
  machine.device->trace().start();
  backward(weighted_sum(y, {1, 1}));
  for (const TraceEntry& entry : machine.device->trace().entries()) CHECK(entry.op.name != "linear_dx");
  CHECK_FALSE(x.grad());
}

TEST_CASE("nothing is recorded while a NoGradGuard lives, and guards nest") {
  Machine machine;
  Parameter weight("weight", {2, 2}, {}, true);
  PlainOwner owner(machine.context);
  owner.add(weight, {1, 2, 3, 4});
  const Tensor x = Tensor::from_host(machine.context, {1, 2}, Floats{1, 2});
  {
    const NoGradGuard guard(machine.context);
    { const NoGradGuard inner(machine.context); }
    const Tensor y = linear(x, weight, nullptr);
    CHECK_FALSE(y.requires_grad());
    CHECK_FALSE(add(machine.leaf({1}), machine.leaf({2})).requires_grad());
    CHECK(weight.pending_uses() == 0);
    CHECK(y.to_host() == Floats{5, 11});
  }
  CHECK(machine.context.is_grad_enabled());
  CHECK(linear(x, weight, nullptr).requires_grad());
}

TEST_CASE("a detached tensor has the same elements and passes no gradient on") {
  Machine machine;
  Tensor x = machine.leaf({1, 2});
  const Tensor h = interior(x);
  backward(add(weighted_sum(h, {1, 1}), weighted_sum(add(h, h.detach()), {10, 10})));
  CHECK(x.grad().to_host() == Floats{11, 11});
}

TEST_CASE("after a walk the loss keeps nothing of its graph alive") {
  Machine machine;
  Tensor x = machine.leaf({1, 2});
  const Tensor loss = weighted_sum(interior(x), {1, 2});
  CHECK(x.autograd().use_count() > 1);
  backward(loss);
  CHECK(x.autograd().use_count() == 1);
}

TEST_CASE("walking a graph twice is an error") {
  Machine machine;
  Tensor x = machine.leaf({1, 2});
  const Tensor loss = weighted_sum(interior(x), {1, 2});
  backward(loss);
  CHECK_THAT(message_of([&] { backward(loss); }), Contains("already run"));
}

TEST_CASE("walking a part of a graph that was walked before is an error that names the op, and runs nothing") {
  Machine machine;
  Tensor x = machine.leaf({1, 2});
  const Tensor shared = gelu(x, GeluKind::erf);
  const Tensor first = weighted_sum(shared, {1, 2}), second = weighted_sum(shared, {1, 2});
  backward(first);
  const Floats before = x.grad().to_host();
  CHECK_THAT(message_of([&] { backward(second); }), Contains("already run") && Contains("gelu"));
  CHECK(x.grad().to_host() == before);
}

TEST_CASE("backward starts from a scalar that depends on something") {
  Machine machine;
  Tensor x = machine.leaf({1, 2});
  CHECK_THAT(message_of([&] { backward(interior(x)); }), Contains("scalar"));
  CHECK_THAT(message_of([&] {
               backward(weighted_sum(x.detach(), {1, 2}));
             }),
             Contains("nothing that wants a gradient"));
  CHECK_THAT(message_of([&] { backward(Tensor{}); }), Contains("scalar"));
  backward(weighted_sum(x, {1, 2}));  // no gradients of gradients
  CHECK_THAT(message_of([&] { backward(weighted_sum(x.grad(), {1, 2})); }), Contains("nothing that wants a gradient"));
}

TEST_CASE("an op that gives gradients that are not its inputs' is named, with the input and both") {
  Machine machine;
  Context& context = machine.context;
  const Tensor right = Tensor::zeros(context, {2}, DType::f32);
  const auto message_for = [&](const std::vector<Tensor>& grads, std::size_t inputs, bool are_leaves) {
    std::vector<Tensor> given;
    for (std::size_t i = 0; i < inputs; ++i)
      given.push_back(are_leaves ? machine.leaf({1, 2}) : interior(machine.leaf({1, 2})));
    Tensor loss = Tensor::zeros(context, {}, DType::f32);
    record_op(loss, "wrong", given, {}, [grads](const Tensor&) { return grads; });
    return message_of([&] { backward(loss); });
  };
  const bool are_leaves = GENERATE(true, false);
  CHECK_THAT(message_for({right, right}, 1, are_leaves), Contains("op wrong gave 2 gradients for 1 inputs"));
  CHECK_THAT(message_for({}, 1, are_leaves), Contains("op wrong gave 0 gradients for 1 inputs"));
  CHECK_THAT(message_for({right, Tensor{}}, 2, are_leaves), Contains("op wrong gave no gradient for its input 1, (2)"));
  CHECK_THAT(message_for({Tensor::zeros(context, {1}, DType::f32)}, 1, are_leaves),
             Contains("op wrong gave a gradient of (1) for its input 0, (2)"));
  CHECK_THAT(message_for({right, right.reshape({1, 2})}, 2, are_leaves),
             Contains("op wrong gave a gradient of (1, 2) for its input 1, (2)"));
  CHECK_THAT(message_for({Tensor::zeros(context, {2}, DType::bf16)}, 1, are_leaves),
             Contains("op wrong gave a gradient of bf16 for its input 0, f32"));
  CHECK(message_for({right, no_gradient()}, 2, are_leaves) == "");
}

TEST_CASE("an op that adds to its input's gradient gives one like it, too") {
  Machine machine;
  Tensor x = machine.leaf({1, 2}), loss = Tensor::zeros(machine.context, {}, DType::f32);
  record_adding_op(loss, "wrong", x, {}, [](const Tensor& dy, const Tensor&) { return dy; });
  CHECK_THAT(message_of([&] { backward(loss); }), Contains("op wrong gave a gradient of () for its input 0, (2)"));
}

TEST_CASE("rows of a tensor that wants a gradient hand theirs on, whatever else used it") {
  Machine machine;
  Tensor x = machine.leaf({1, 2, 3, 4});
  const bool is_used_besides = GENERATE(true, false);
  const Tensor h = interior(x), first = h.rows(0, 2), middle = h.rows(1, 2), none = h.rows(4, 0);
  CHECK(first.requires_grad());
  CHECK(none.requires_grad());
  Tensor loss = add(weighted_sum(first, {10, 20}), weighted_sum(middle, {100, 200}));
  if (is_used_besides) loss = add(weighted_sum(h, {1, 1, 1, 1}), loss);
  backward(add(loss, weighted_sum(none, {})));
  const float besides = is_used_besides ? 1 : 0;
  CHECK(x.grad().to_host() == Floats{10 + besides, 120 + besides, 200 + besides, besides});
  CHECK_FALSE(x.detach().rows(0, 1).requires_grad());
}

TEST_CASE("a backward starts from a scalar in f32") {
  Machine machine;
  Tensor x = machine.leaf({1});
  CHECK_THAT(message_of([&] { backward(cast(interior(x), DType::bf16)); }),
             Contains("bf16 (1)") && Contains("cast(loss, DType::f32)"));
}

TEST_CASE("a parameter that nobody materialises is an error that names it") {
  Machine machine;
  Parameter weight("layer.weight", {2, 2}, {}, true);
  const Tensor x = Tensor::from_host(machine.context, {1, 2}, Floats{1, 2});
  CHECK_THAT(message_of([&] { linear(x, weight, nullptr); }), Contains("layer.weight") && Contains("not unsharded"));
  CHECK_THAT(message_of([&] { weight.grad_target(); }), Contains("layer.weight") && Contains("has none for it"));
  const Tensor values = Tensor::zeros(machine.context, {2, 2}, DType::f32);
  weight.bind(values.buffer());
  CHECK_THAT(message_of([&] { linear(x, weight, nullptr); }), Contains("layer.weight") && Contains("no model has"));
}

TEST_CASE("a chain of 2000 ops is walked") {
  Machine machine;
  Tensor x = machine.leaf({1, 2});
  const Tensor one = Tensor::from_host(machine.context, {2}, Floats{1, 1});
  Tensor h = interior(x);
  for (int i = 0; i < 2000; ++i) h = add(h, one);
  CHECK(h.to_host() == Floats{2001, 2002});
  backward(weighted_sum(h, {1, 2}));
  CHECK(x.grad().to_host() == Floats{1, 2});
}

TEST_CASE("a chain of any length is dropped without a deep recursion") {
  const auto device = Device::create(DeviceKind::meta, {});
  Context context(*device);
  const bool is_walked = GENERATE(false, true);
  Tensor x = Tensor::empty(context, {1}, DType::f32);
  x.set_requires_grad();
  Tensor h = interior(x);
  for (int i = 0; i < 200'000; ++i) h = interior(h);
  if (is_walked) backward(h.reshape({}));
  h = {};
  CHECK(x.autograd().use_count() == 1);
}

}  // namespace zs::test::autograd_test
