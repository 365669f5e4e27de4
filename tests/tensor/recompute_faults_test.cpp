// Functions that cannot be recomputed as they are, and what they leave behind.
#include <catch2/catch.hpp>

#include "tests/message_of.h"
#include "tests/tensor/recompute_machine.h"

namespace zs::test::recompute_faults_test {

using Catch::Matchers::Contains;

TEST_CASE("a last part whose result a backward keeps is an error") {
  RecomputeMachine machine;
  Tensor x = machine.leaf("x");
  const auto body = [](const Tensors& in) { return in; };
  const auto keeps_own = [&](const Tensors& in) { return causal_attention(in[0].reshape({1, kRows, kWidth}), 1); };
  const auto keeps_input = [&](const Tensors& in) { return gelu(machine.through(in[0], 0), GeluKind::tanh); };
  CHECK_THAT(message_of([&] { backward(sum_of(recompute({x}, body, keeps_own))); }),
             Contains("belongs into the first part"));
  CHECK_THAT(message_of([&] { backward(sum_of(recompute({x}, body, keeps_input))); }),
             Contains("belongs into the first part"));
}

TEST_CASE("a tensor that wants a gradient and comes into a recomputed function past its inputs is an error") {
  RecomputeMachine machine;
  Tensor x = machine.leaf("x");
  const Tensor other = machine.through(x, 0);
  CHECK_THAT(message_of([&] { recompute({x}, [&](const Tensors& in) { return add(in[0], other); }); }),
             Contains("op add") && Contains("none of the function's inputs"));
  CHECK_THAT(message_of([&] { recompute({x}, [&](const Tensors&) { return other; }); }),
             Contains("none of its inputs"));
  CHECK(machine.context.is_grad_enabled());
  CHECK(recompute({x, other}, [&](const Tensors& in) { return add(in[0], in[1]); }).requires_grad());
}

TEST_CASE("a function that does something else when it runs again is an error") {
  RecomputeMachine machine;
  Tensor x = machine.leaf("x");
  const auto message = [&](const std::function<Tensor(const Tensor& in, bool runs_again)>& function) {
    const Tensor y =
        recompute({x}, [&](const Tensors& in) { return function(in[0], machine.context.mode().runs_again); });
    return message_of([&] { backward(sum_of(y)); });
  };
  CHECK_THAT(message([&](const Tensor& in, bool again) {
               return again ? in.reshape({kWidth, kRows}) : in.reshape({kRows * kWidth});
             }),
             Contains("runs op reshape with result (6, 5) when it runs again, where it first ran op reshape with "
                      "result (30)"));
  CHECK_THAT(message([&](const Tensor& in, bool again) { return again ? gelu(in, GeluKind::tanh) : sigmoid(in); }),
             Contains("runs op gelu") && Contains("first ran op sigmoid"));
  CHECK_THAT(
      message([&](const Tensor& in, bool again) { return machine.through(in, again ? 1 : 0); }),
      Contains("of parameter " + machine.weights[1]->name()) && Contains("of parameter " + machine.weights[0]->name()));
  CHECK_THAT(message([&](const Tensor& in, bool again) { return again ? sigmoid(in) : sigmoid(sigmoid(in)); }),
             Contains("runs no further op when it runs again, where it first ran op sigmoid"));
  CHECK_THAT(message([&](const Tensor& in, bool again) { return again ? sigmoid(sigmoid(in)) : sigmoid(in); }),
             Contains("runs op sigmoid") && Contains("where it first ran no further op"));
  CHECK_THAT(message([&](const Tensor& in, bool) {  // the inner one's first run is a part of the outer's second
               return recompute({in}, [&](const Tensors& inner) {
                 return machine.context.mode().runs_again ? gelu(inner[0], GeluKind::tanh) : sigmoid(inner[0]);
               });
             }),
             Contains("runs op gelu") && Contains("first ran op sigmoid"));
}

TEST_CASE("what a recomputed function makes once and keeps, and no gradient flows through, is no other work") {
  RecomputeMachine machine;
  Tensor x = machine.leaf("x"), table;
  const Tensor y = recompute({x}, [&](const Tensors& in) {
    if (!table) table = add(Tensor::zeros(machine.context, in[0].shape(), DType::f32), in[0].detach());
    return add(in[0], table);
  });
  backward(sum_of(y));
  CHECK(x.grad().to_host() == to_floats(normal(y.shape(), "sum").values));
}

TEST_CASE(
    "a recomputed function may end in a head that computes its gradients ahead of backward, where backward starts") {
  const auto targets = random_ids(kRows, kWidth, 3);
  const auto run = [&](const Caller& caller, std::optional<float> seed, bool goes_on) {
    RecomputeMachine machine;
    Tensor x = machine.leaf("x");
    Tensor loss = caller({machine.through(x, 0)}, [&](const Tensors& in) {
      const Tensor ids = Tensor::from_host(machine.context, {kRows}, targets);
      return lm_head_loss(machine.through(in[0], 1), *machine.weights[2], ids, kWidth, {.seed = seed});
    });
    if (goes_on) loss = add(loss, loss);
    backward(loss, 0.5f);
    CHECK(machine.weights[2]->early_gradients() == 0);
    return std::vector<Floats>{loss.to_host(), x.grad().to_host(), machine.grad(0), machine.grad(1), machine.grad(2)};
  };
  const std::vector<Floats> plain = run(kPlain, std::nullopt, false);
  CHECK(run(kRecomputed, std::nullopt, false) == plain);
  CHECK(run(kRecomputed, 0.5f, false) == plain);
  CHECK_THAT(message_of([&] { run(kRecomputed, 0.25f, false); }), Contains("seed 0.25") && Contains("has seed 0.5"));
  CHECK_THAT(message_of([&] { run(kRecomputed, 0.5f, true); }), Contains("starts elsewhere"));
}

TEST_CASE("an exception in either run of a recomputed function leaves the context as it was") {
  RecomputeMachine machine;
  const Floats undisturbed = [] {
    RecomputeMachine other;
    Tensor x = other.leaf("x");
    backward(sum_of(gelu(other.through(x, 0), GeluKind::tanh)));
    return other.grad(0);
  }();
  const bool in_second_run = GENERATE(false, true);
  Tensor x = machine.leaf("x");
  const auto throws = [&](const Tensors& in) {
    const Tensor y = machine.through(in[0], 0);
    if (machine.context.mode().runs_again == in_second_run) throw std::runtime_error("thrown by the function");
    return gelu(y, GeluKind::tanh);
  };
  CHECK_THROWS_WITH(backward(sum_of(recompute({x}, throws))), Contains("thrown by the function"));
  CHECK(machine.context.is_grad_enabled());
  CHECK_FALSE(machine.context.mode().runs_again);
  CHECK((machine.context.mode().noted == nullptr && machine.context.mode().repeated == nullptr));
  machine.weights[0]->clear_uses();
  machine.owner.clear_gradients();
  backward(sum_of(recompute({x}, [&](const Tensors& in) { return gelu(machine.through(in[0], 0), GeluKind::tanh); })));
  CHECK(machine.grad(0) == undisturbed);
}

}  // namespace zs::test::recompute_faults_test
