// Ops with frozen parameters: no gradient is asked of those, and everything else is as without them.
#include <catch2/catch.hpp>

#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/reduction.h"
#include "tests/message_of.h"
#include "tests/tensor/gradient_check.h"
#include "tests/tensor/plain_owner.h"

namespace zs::test::frozen_test {
namespace {

using Catch::Contains;

constexpr std::int64_t kRows = 4, kWidth = 6;

std::vector<float> values(std::int64_t count, int salt) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>((i * 5 + static_cast<std::size_t>(salt) * 3) % 13) * 0.125f - 0.75f;
  return out;
}

/// Every op with parameters, in a row; the gradients of all of them, empty where none was asked for, and that of the
/// input.
struct Model {
  std::vector<std::unique_ptr<Parameter>> parameters;
  Parameter& add(const char* name, Shape shape) {
    return *parameters.emplace_back(std::make_unique<Parameter>(name, shape, Init{}, true));
  }
  Parameter &table = add("table", {5, kWidth}), &positions = add("positions", {kRows, kWidth}),
            &gamma = add("gamma", {kWidth}), &beta = add("beta", {kWidth}), &weight = add("weight", {kWidth, kWidth}),
            &bias = add("bias", {kWidth}), &head = add("head", {5, kWidth});
};

std::vector<std::vector<float>> gradients(unsigned frozen, std::optional<float> seed, DType dtype) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Model model;
  PlainOwner owner(context, dtype, dtype);
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    owner.add(*model.parameters[i], values(model.parameters[i]->numel(), static_cast<int>(i)));
    model.parameters[i]->set_trainable((frozen >> i & 1U) == 0);
  }
  const Tensor ids = Tensor::from_host(context, {1, kRows}, std::vector<std::int32_t>{0, 3, 3, 1});
  const Tensor targets = Tensor::from_host(context, {kRows}, std::vector<std::int32_t>{1, 0, 4, 2});
  Tensor input = Tensor::from_host(context, {1, kRows, kWidth}, values(kRows * kWidth, 9), dtype);
  input.set_requires_grad();
  const Tensor x = add(embedding(ids, model.table, &model.positions), input);
  const Tensor y = linear(layer_norm(x, model.gamma, model.beta), model.weight, &model.bias);
  backward(lm_head_loss(y, model.head, targets, 5, {.seed = seed}));
  std::vector<std::vector<float>> all{input.grad().to_host()};
  for (const auto& parameter : model.parameters) {
    const bool is_written = parameter->grad().data != nullptr && parameter->is_grad_written();
    all.push_back(is_written ? owner.grad(*parameter).to_host() : std::vector<float>{});
  }
  return all;
}

}  // namespace

TEST_CASE("ops ask frozen parameters for no gradient, and all other gradients keep their bits, whichever are frozen") {
  const std::optional<float> seed = GENERATE(as<std::optional<float>>{}, std::nullopt, 1.0f);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const auto all = gradients(0, seed, dtype);
  for (unsigned frozen = 1; frozen < 1U << 7U; ++frozen) {
    CAPTURE(frozen);
    const auto some = gradients(frozen, seed, dtype);
    REQUIRE(some.size() == all.size());
    CHECK(some[0] == all[0]);
    for (std::size_t i = 0; i < 7; ++i)
      CHECK(some[i + 1] == ((frozen >> i & 1U) != 0 ? std::vector<float>{} : all[i + 1]));
  }
}

TEST_CASE("a product of some rows of a frozen weight has the bits of those of the whole, and so has its gradient") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Parameter weight("weight", {kWidth, kWidth}, {}, true);
  PlainOwner owner(context, dtype, dtype);
  owner.add(weight, values(kWidth * kWidth, 1));
  CHECK_THAT(message_of([&] {
               linear_rows(Tensor::zeros(context, {kRows, kWidth}, dtype), weight, 1, 3);
             }),
             Contains("rows 1 to 4 of the trained parameter weight"));
  weight.set_trainable(false);
  const auto run = [&](bool is_of_whole) {
    Tensor x = Tensor::from_host(context, {2, kRows / 2, kWidth}, values(kRows * kWidth, 2), dtype);
    x.set_requires_grad();
    const Tensor y = is_of_whole ? slice(linear(x, weight, nullptr), -1, 1, 3) : linear_rows(x, weight, 1, 3);
    backward(sum(cast(y, DType::f32) * Tensor::from_host(context, {3}, values(3, 4))));
    return std::pair(y.to_host(), x.grad().to_host());
  };
  CHECK(run(false) == run(true));
  const std::vector<float> all = rows_of(context, weight, 0, kWidth).to_host();
  CHECK(rows_of(context, weight, 2, 3).to_host() ==
        std::vector<float>(all.begin() + 2 * kWidth, all.begin() + 5 * kWidth));
  CHECK_THAT(message_of([&] { rows_of(context, weight, 4, 3); }), Contains("rows 4 to 7 of parameter weight"));
  CHECK_THAT(message_of([&] {
               linear_rows(Tensor::zeros(context, {kRows, kWidth}, dtype), weight, 4, 3);
             }),
             Contains("rows 4 to 7 of the frozen parameter weight"));
}

TEST_CASE("an op whose parameters are all frozen and whose inputs want no gradient is not recorded") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Parameter weight("weight", {kWidth, kWidth}, {}, true);
  PlainOwner owner(context);
  owner.add(weight, values(kWidth * kWidth, 1));
  const Tensor x = Tensor::from_host(context, {kRows, kWidth}, values(kRows * kWidth, 2));
  CHECK(linear(x, weight, nullptr).requires_grad());
  weight.clear_uses();
  weight.set_trainable(false);
  CHECK_FALSE(linear(x, weight, nullptr).requires_grad());
  CHECK(weight.pending_uses() == 0);
}

}  // namespace zs::test::frozen_test
