// Ops of a user's that forget a parameter, or write over what another op's backward needs.
#include <catch2/catch.hpp>

#include <functional>
#include <memory>

#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/recompute.h"
#include "tests/message_of.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::misused_ops_test {
namespace {

using Catch::Contains;

struct Rank {
  std::unique_ptr<Device> device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context{*device};
  PlainOwner owner{context, DType::f32, DType::f32, &context};
  Parameter scale{"scale", {4}, {}, false}, shift{"shift", {4}, {}, false};

  Rank() {
    owner.add(scale, {1, 2, 3, 4});
    owner.add(shift, {0, 0, 1, 1});
  }
  ~Rank() {
    scale.set_owner(nullptr);
    shift.set_owner(nullptr);
  }
  Tensor x() { return Tensor::from_host(context, {4}, std::vector<float>{1, -1, 2, 0.5f}); }
  /// out := in * by + plus, launched and not recorded.
  Tensor affine(const Tensor& in, const Buffer& by, const Buffer& plus) {
    Tensor out = Tensor::empty(context, in.shape(), DType::f32);
    const Buffer to = out.buffer(), from = in.buffer();
    context.launch({"affine", {from, by, plus}, {to}}, [to, from, by, plus](ExecContext&) {
      for (std::int64_t i = 0; i < to.elems; ++i)
        to.as<float>()[i] = from.as<float>()[i] * by.as<float>()[i] + plus.as<float>()[i];
    });
    return out;
  }
  void fill(const Tensor& tensor, float value) {
    const Buffer out = tensor.buffer();
    context.launch({"fill", {}, {out}}, [out, value](ExecContext&) {
      for (std::int64_t i = 0; i < out.elems; ++i) out.as<float>()[i] = value;
    });
  }
};

Backward no_backward() {
  return [](const Tensor& dy) { return std::vector<Tensor>{dy}; };
}

}  // namespace

TEST_CASE("an op that is not recorded with a trained parameter that it computes from is refused by both names") {
  Rank r;
  const auto message = [&](const std::vector<Parameter*>& named, bool is_step_between = false) {
    Tensor x = r.x();
    x.set_requires_grad();
    return coded_message_of([&] {
      Tensor y = r.affine(x, r.scale.value(), r.shift.value());
      if (is_step_between) y = r.affine(y, y.buffer(), x.buffer());
      record_op(y, "affine", {x}, named, no_backward());
    });
  };
  CHECK_THAT(message({}), Contains("64: op affine computes from parameter scale") && Contains("record_op"));
  CHECK_THAT(message({&r.scale}), Contains("64: op affine computes from parameter shift"));
  CHECK_THAT(message({&r.scale}, true), Contains("64: op affine computes from parameter shift"));
  CHECK(message({&r.scale, &r.shift}).empty());
  CHECK(message({&r.scale, &r.shift}, true).empty());
  r.shift.set_trainable(false);
  CHECK(message({&r.scale}).empty());
  r.scale.set_trainable(false);
  CHECK(message({}).empty());
}

TEST_CASE("a parameter's value that goes into no recorded op is nobody's mistake") {
  Rank r;
  Tensor two = Tensor::zeros(r.context, {4}, DType::f32), results = Tensor::zeros(r.context, {4}, DType::f32);
  r.context.launch({"two", {r.scale.value()}, {two.buffer(), results.buffer()}}, [](ExecContext&) {});
  record_op(two, "two", {}, {}, no_backward());
  {
    const NoGradGuard guard(r.context);
    Tensor y = r.affine(r.x(), r.scale.value(), r.shift.value());
    record_op(y, "affine", {}, {}, no_backward());
  }
  const Tensor looked_at = r.affine(r.x(), r.scale.value(), r.shift.value());
  Tensor x = r.x();
  x.set_requires_grad();
  const Tensor z = x * 2.0f;
  Tensor y = r.affine(x, r.scale.value(), r.shift.value());
  std::vector<Tensor> outputs{y};
  record_outputs(outputs, "affine", {x}, {&r.scale, &r.shift},
                 [&](const std::vector<Tensor>& dy) { return std::vector<Tensor>{dy[0]}; });
  CHECK(coded_message_of([&] { sum(outputs[0].reshape({2, 2}) + z.reshape({2, 2})); }).empty());
}

TEST_CASE("a write into what an op saved for its backward is refused when the backward reads it") {
  Rank r;
  Tensor x = r.x();
  x.set_requires_grad();
  const auto message = [&](const std::function<Tensor(const Tensor&)>& op, bool writes_after) {
    return coded_message_of([&] {
      Tensor saved = x * 2.0f;
      if (!writes_after) r.fill(saved, 3);
      const Tensor y = op(saved);
      if (writes_after) r.fill(saved, 3);
      sum(y).backward();
    });
  };
  const auto square = [](const Tensor& in) { return in * in; };
  CHECK(message(square, false).empty());
  CHECK_THAT(message(square, true),
             Contains("64: the backward of op mul reads a tensor of 4 x f32") && Contains("written to after the op"));
  // A part of it counts, and what no backward reads does not
  CHECK_THAT(message(
                 [&](const Tensor& in) {
                   const Tensor y = in * in;
                   r.fill(in.rows(1, 1), 3);
                   return y;
                 },
                 false),
             Contains("op mul"));
  CHECK(message([](const Tensor& in) { return in + in; }, true).empty());
  CHECK_THAT(
      message(
          [&](const Tensor& in) { return recompute({in}, [&](const std::vector<Tensor>& v) { return square(v[0]); }); },
          true),
      Contains("the backward of op recompute"));
}

TEST_CASE("a gradient that was computed in forward, or is added to twice, is no tensor that was saved") {
  Rank r;
  Tensor x = r.x();
  x.set_requires_grad();
  const auto backward = [&] {
    Tensor scaled = x * 3.0f;
    Tensor z = scaled.detach();
    const Tensor ready = Tensor::zeros(r.context, {4}, DType::f32);
    r.fill(ready, 0.5f);
    record_op(z, "ready", {scaled}, {}, [ready](const Tensor&) { return std::vector<Tensor>{ready}; });
    (sum(z) + sum(x.rows(0, 2)) + sum(x.rows(1, 3))).backward();
  };
  backward();
  const Tensor late = sum(x.rows(0, 1));
  backward();
  const Tensor before = x.grad();
  late.backward();
  CHECK(before.to_host() == std::vector<float>{5, 7, 5, 5});
  CHECK(x.grad().to_host() == std::vector<float>{6, 7, 5, 5});
}

}  // namespace zs::test::misused_ops_test
