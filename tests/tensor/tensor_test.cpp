#include "runtime/tensor/tensor.h"

#include <catch2/catch.hpp>

#include "tests/tensor/gradient_check.h"

namespace zs::test {
namespace {

using Floats = std::vector<float>;

struct Machine {
  std::unique_ptr<Device> device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context{*device};
};

}  // namespace

TEST_CASE("host values come back as they were given") {
  Machine machine;
  const Tensor x = Tensor::from_host(machine.context, {2, 3}, Floats{1, 2, 3, 4, 5, 6});
  CHECK(x.shape() == Shape{2, 3});
  CHECK(x.dtype() == DType::f32);
  CHECK(x.to_host() == Floats{1, 2, 3, 4, 5, 6});
  CHECK(Tensor::zeros(machine.context, {3}, DType::f32).to_host() == Floats{0, 0, 0});
  CHECK(Tensor::zeros(machine.context, {3}, DType::bf16).to_host() == Floats{0, 0, 0});
}

TEST_CASE("host values become bf16 by rounding to nearest even") {
  Machine machine;
  const Tensor x = Tensor::from_host(machine.context, {3}, Floats{1, 1.00390625f, 3.14159f}, DType::bf16);
  CHECK(x.dtype() == DType::bf16);
  CHECK(x.to_host() == Floats{1, 1, 3.140625f});
}

TEST_CASE("host values are captured when they are given") {
  Machine machine;
  Floats values{1, 2};
  const Tensor x = Tensor::from_host(machine.context, {2}, values);
  values[0] = 9;
  CHECK(x.to_host() == Floats{1, 2});
}

TEST_CASE("a reshape and rows are views of the same storage") {
  Machine machine;
  const Tensor x = Tensor::from_host(machine.context, {4, 3}, Floats{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const Tensor tail = x.rows(1, 3), row = tail.rows(1, 1), flat = tail.reshape({9});
  CHECK(tail.shape() == Shape{3, 3});
  CHECK(tail.to_host() == Floats{3, 4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(row.to_host() == Floats{6, 7, 8});
  CHECK(flat.to_host() == tail.to_host());
  CHECK(flat.buffer().data == static_cast<float*>(x.buffer().data) + 3);
  CHECK(x.rows(4, 0).numel() == 0);
}

TEST_CASE("views of ids are views too") {
  Machine machine;
  const Tensor ids = Tensor::from_host(machine.context, {2, 2}, std::vector<std::int32_t>{1, 2, 3, 4});
  CHECK(ids.dtype() == DType::i32);
  const Buffer second = ids.rows(1, 1).buffer();
  machine.device->synchronize();
  CHECK(second.as<std::int32_t>()[0] == 3);
  CHECK(second.as<std::int32_t>()[1] == 4);
}

TEST_CASE("storage lives as long as any view of it, and then goes back") {
  Machine machine;
  const std::int64_t before = machine.device->memory().live_bytes();
  Tensor x = Tensor::from_host(machine.context, {64}, Floats(64, 1.0f));
  CHECK(machine.device->memory().live_bytes() == before + 256);
  CHECK(x.is_sole_owner());
  Tensor view = x.reshape({8, 8}).rows(2, 1);
  CHECK_FALSE(x.is_sole_owner());
  x = {};
  CHECK(view.is_sole_owner());
  CHECK(machine.device->memory().live_bytes() == before + 256);
  CHECK(view.to_host() == Floats(8, 1.0f));
  view = {};
  CHECK(machine.device->memory().live_bytes() == before);
}

TEST_CASE("memory is counted under its label") {
  Machine machine;
  const Tensor x = Tensor::empty(machine.context, {3}, DType::f32, "special");
  CHECK(machine.device->memory().live_by_label().at("special") == 64);
}

TEST_CASE("shapes and values that do not fit are refused") {
  Machine machine;
  const Tensor x = Tensor::zeros(machine.context, {2, 3}, DType::f32);
  CHECK_THROWS_AS(Tensor::from_host(machine.context, {2, 3}, Floats{1, 2}), Error);
  CHECK_THROWS_AS(Tensor::from_host(machine.context, {2}, std::vector<std::int32_t>{1}), Error);
  CHECK_THROWS_AS(x.reshape({7}), Error);
  CHECK_THROWS_AS(x.rows(1, 2), Error);
  CHECK_THROWS_AS(x.rows(-1, 1), Error);
  CHECK_THROWS_AS(Tensor{}.buffer(), Error);
  CHECK_THROWS_AS(Tensor{}.context(), Error);
}

TEST_CASE("an empty tensor is false, any other is true") {
  Machine machine;
  CHECK_FALSE(Tensor{});
  CHECK(Tensor::empty(machine.context, {0}, DType::f32));
  CHECK(Tensor::empty(machine.context, {}, DType::f32).numel() == 1);
}

TEST_CASE("only a leaf can be made to require a gradient") {
  Machine machine;
  Tensor x = Tensor::zeros(machine.context, {2}, DType::f32);
  CHECK_FALSE(x.requires_grad());
  x.set_requires_grad();
  CHECK(x.requires_grad());
  CHECK_FALSE(x.grad());
  Tensor y = x.reshape({2, 1});
  CHECK(y.requires_grad());
  CHECK_THROWS_AS(y.set_requires_grad(), Error);
  CHECK_FALSE(y.detach().requires_grad());
}

TEST_CASE("ops that do not fit their arguments are refused with their shapes") {
  Machine machine;
  Context& context = machine.context;
  Parameter weight("weight", {2, 3}, {}, true), gamma("gamma", {3}, {}, false), beta("beta", {3}, {}, false);
  PlainOwner owner(context);
  owner.add(weight, Floats(6, 1.0f));
  owner.add(gamma, Floats(3, 1.0f));
  owner.add(beta, Floats(3, 1.0f));
  const Tensor x = Tensor::zeros(context, {4, 2}, DType::f32), ids = Tensor::from_host(context, {2, 3}, std::vector<std::int32_t>(6, 1));
  const Tensor wide = Tensor::zeros(context, {4, 3}, DType::f32);
  CHECK_THROWS_AS(linear(x, weight, nullptr), Error);
  CHECK_THROWS_AS(layer_norm(x, gamma, beta), Error);
  CHECK_THROWS_AS(add(x, wide), Error);
  CHECK_THROWS_AS(add(x, Tensor::zeros(context, {4, 2}, DType::bf16)), Error);
  CHECK_THROWS_AS(embedding(ids, weight, &weight), Error);  // two positions for a sequence of three
  CHECK_THROWS_AS(embedding(x, weight, nullptr), Error);
  CHECK_THROWS_AS(causal_attention(x, 2), Error);
  CHECK_THROWS_AS(causal_attention(Tensor::zeros(context, {1, 2, 9}, DType::f32), 2), Error);
  CHECK_THROWS_AS(lm_head_loss(wide, weight, ids, 2), Error);                                      // six targets for four tokens
  CHECK_THROWS_AS(lm_head_loss(wide, weight, ids.reshape({6}).rows(0, 4), 3), Error);              // three classes of two rows
  CHECK_THROWS_AS(lm_head_loss(wide, weight, Tensor::zeros(context, {4}, DType::f32), 2), Error);  // targets that are no ids
}

}  // namespace zs::test
