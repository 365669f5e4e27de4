#include "runtime/tensor/tensor.h"
#include "tests/message_of.h"

#include <catch2/catch.hpp>

#include "tests/tensor/gradient_check.h"

namespace zs::test::tensor_test {
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
  const Tensor x = Tensor::zeros(context, {4, 2}, DType::f32),
               ids = Tensor::from_host(context, {2, 3}, std::vector<std::int32_t>(6, 1));
  const Tensor wide = Tensor::zeros(context, {4, 3}, DType::f32);
  CHECK_THROWS_AS(linear(x, weight, nullptr), Error);
  CHECK_THROWS_AS(layer_norm(x, gamma, beta), Error);
  CHECK_THROWS_AS(add(x, wide), Error);
  CHECK_THROWS_AS(add(x, Tensor::zeros(context, {4, 2}, DType::bf16)), Error);
  CHECK_THROWS_AS(embedding(ids, weight, &weight), Error);  // two positions for a sequence of three
  CHECK_THROWS_AS(embedding(x, weight, nullptr), Error);
  CHECK_THROWS_AS(causal_attention(x, 2), Error);
  CHECK_THROWS_AS(causal_attention(Tensor::zeros(context, {1, 2, 9}, DType::f32), 2), Error);
  CHECK_THROWS_AS(lm_head_loss(wide, weight, ids, 2), Error);                          // six targets for four tokens
  CHECK_THROWS_AS(lm_head_loss(wide, weight, ids.reshape({6}).rows(0, 4), 3), Error);  // three classes of two rows
  CHECK_THROWS_AS(lm_head_loss(wide, weight, Tensor::zeros(context, {4}, DType::f32), 2),
                  Error);  // targets that are no ids
}

TEST_CASE("an op's dtype and shape errors name the op, the parameter and the remedy, and are the caller's") {
  using Catch::Matchers::Contains;
  Machine machine;
  Context& context = machine.context;
  Parameter weight("a.weight", {2, 3}, {}, true), gamma("a.gamma", {3}, {}, false), table("a.table", {4, 2}, {}, true);
  PlainOwner narrow(context, DType::bf16, DType::f32), wide(context);
  narrow.add(weight, Floats(6, 1.0f));
  wide.add(gamma, Floats(3, 1.0f));
  wide.add(table, Floats(8, 1.0f));
  const Tensor x = Tensor::zeros(context, {4, 3}, DType::f32), floats = Tensor::zeros(context, {4}, DType::f32);
  const Tensor ids = Tensor::from_host(context, {2, 2}, std::vector<std::int32_t>(4, 1));
  const auto refuses = [](const std::function<void()>& body, const char* op, const char* what, const char* remedy) {
    CHECK_THAT(coded_message_of(body), Contains("64: ") && Contains(op) && Contains(what) && Contains(remedy));
  };
  refuses([&] { linear(x, weight, nullptr); }, "op linear", "x is f32 (4, 3), and parameter a.weight, bf16 (2, 3)",
          "Module::input");
  refuses([&] { lm_head_loss(x, weight, ids, 2); }, "op lm_head_loss", "parameter a.weight, bf16",
          "cast(x, DType::bf16)");
  refuses([&] { linear_gelu(floats, weight, nullptr, GeluKind::tanh); }, "op linear", "a.weight (2, 3)", "rows of 3");
  refuses([&] { rms_norm(floats, gamma); }, "op rms_norm", "a.gamma (3)", "rows of 3");
  refuses([&] { rms_norm(Tensor::zeros(context, {3}, DType::i32), gamma); }, "op rms_norm", "i32 (3)", "f32 or bf16");
  refuses([&] { embedding(x, table, nullptr); }, "op embedding", "ids are f32 (4, 3)", "std::int32_t");
  refuses([&] { embedding(ids, table, &weight); }, "op embedding", "a.weight, bf16", "precision");
  refuses([&] { gelu(ids, GeluKind::erf); }, "op gelu", "i32 (2, 2)", "f32 or bf16");
  refuses([&] { swiglu(ids); }, "op swiglu", "i32", "f32 or bf16");
  refuses([&] { add(x, floats); }, "op add", "f32 (4, 3) and f32 (4)", "reshape");
  refuses([&] { add(x, cast(x, DType::bf16)); }, "op add", "f32 (4, 3) and bf16 (4, 3)", "cast");
  refuses([&] { causal_attention(x, 3, 2); }, "op attention", "f32 (4, 3)", "kv_heads");
  refuses([&] { lm_head_loss(cast(x, DType::bf16), weight, floats, 2); }, "op lm_head_loss", "targets are f32 (4)",
          "i32");
}

TEST_CASE("a kernel's dtype error names the op that ran it, and the remedy") {
  using Catch::Matchers::Contains;
  Machine machine;
  Context& context = machine.context;
  const KernelTable& kernels = context.kernels();
  const auto message_for = [&](DType logits_dtype, DType targets_dtype) {
    const Tensor logits = Tensor::zeros(context, {2, 3}, logits_dtype),
                 targets = Tensor::zeros(context, {2}, targets_dtype);
    const Tensor losses = Tensor::empty(context, {2}, DType::f32), lse = Tensor::empty(context, {2}, DType::f32);
    const Buffer out = losses.buffer(), sums = lse.buffer(), in = logits.buffer(), wanted = targets.buffer();
    context.launch({"my_loss", {in, wanted}, {out, sums}}, [&kernels, out, sums, in, wanted](ExecContext& exec) {
      kernels.cross_entropy_forward(exec, out, sums, in, wanted, 3);
    });
    return coded_message_of([&] { context.stream().synchronize(); });
  };
  CHECK(message_for(DType::f32, DType::i32) == "");
  CHECK_THAT(message_for(DType::f32, DType::f32),
             Contains("op my_loss: targets are f32, expected i32") && Contains("std::int32_t"));
  CHECK_THAT(message_for(DType::bf16, DType::i32),
             Contains("op my_loss: logits are bf16, expected f32") && Contains("cast(logits"));
}

TEST_CASE("tokens that are padding give the table no gradient, and the head that is tied to it gives its own") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  Machine machine;
  Context& context = machine.context;
  Parameter table("table", {5, 8}, {}, true), positions("positions", {4, 8}, {}, true);
  PlainOwner owner(context, dtype, DType::f32);
  Floats values;
  for (int i = 0; i < 40; ++i) values.push_back(0.125f * static_cast<float>(i * 7 % 11) - 0.5f);
  owner.add(table, values);
  owner.add(positions, Floats(32, 0.5f));
  const Tensor ids = Tensor::from_host(context, {2, 4}, std::vector<std::int32_t>{3, 1, 3, 0, 2, 3, 1, 3});
  const auto gradients = [&](std::int64_t padding, bool is_tied) {
    owner.clear_gradients();
    const Tensor x = embedding(ids, table, &positions, 0, {}, padding);
    backward(is_tied ? lm_head_loss(x, table, ids, 5) : sum(cast(x, DType::f32)));
    return std::pair(owner.grad(table).to_host(), owner.grad(positions).to_host());
  };
  const auto all = gradients(-1, false), padded = gradients(3, false);
  CHECK(padded.second == all.second);
  const auto row = [](const Floats& values, int i) {
    return Floats(values.begin() + 8 * i, values.begin() + 8 * i + 8);
  };
  CHECK(row(all.first, 3) == Floats(8, 4.0f));
  CHECK(row(padded.first, 3) == Floats(8, 0.0f));
  for (const int other : {0, 1, 2, 4}) CHECK(row(padded.first, other) == row(all.first, other));
  const Floats tied = gradients(3, true).first;
  CHECK(row(tied, 3) != Floats(8, 0.0f));
  CHECK(row(tied, 3) != row(gradients(-1, true).first, 3));
  CHECK_THROWS_WITH(embedding(ids, table, nullptr, 0, {}, 5), Catch::Contains("padding 5 of a table of 5 rows"));
}

TEST_CASE("a batch of no rows has a loss of zero and gradients of zeros") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const bool is_seeded = GENERATE(false, true), is_flat = GENERATE(false, true);
  Machine machine;
  Context& context = machine.context;
  Parameter table("table", {5, 8}, {}, true), positions("positions", {4, 8}, {}, true), gamma("gamma", {8}, {}, true),
      beta("beta", {8}, {}, true), wide("wide", {24, 8}, {}, true), bias("bias", {24}, {}, true),
      up("up", {16, 8}, {}, true), scale("scale", {8}, {}, true);
  PlainOwner owner(context, dtype, DType::f32);
  const std::vector<Parameter*> all{&table, &positions, &gamma, &beta, &wide, &bias, &up, &scale};
  for (Parameter* parameter : all) owner.add(*parameter, Floats(static_cast<std::size_t>(parameter->numel()), 0.5f));
  const Shape tokens = is_flat ? Shape{2, 0} : Shape{0, 4};
  const Tensor ids = Tensor::from_host(context, tokens, std::vector<std::int32_t>{});
  Tensor x = embedding(ids, table, &positions);
  x = add(x, causal_attention(rotary(linear(layer_norm(x, gamma, beta), wide, &bias), 2), 2));
  const SumAndNorm sum = add_rms_norm(x, x, scale);
  const Tensor y = add(sum.sum, swiglu(linear_gelu(sum.y, up, nullptr, GeluKind::tanh)));
  const LossOptions options{.seed = is_seeded ? std::optional(1.0f) : std::nullopt};
  const Tensor loss = lm_head_loss(y.rows(0, y.shape()[0]), table, ids, 5, options);
  CHECK(loss.to_host() == Floats{0});
  backward(loss, 1.0f);
  for (Parameter* parameter : all) {
    INFO(parameter->name());
    CHECK(owner.grad(*parameter).to_host() == Floats(static_cast<std::size_t>(parameter->numel()), 0.0f));
  }
}

}  // namespace zs::test::tensor_test
