// The head that computes its gradients in forward: the same bits as the one that does not, and no way to use it half.
#include <catch2/catch.hpp>

#include "comm/world.h"
#include "runtime/shard/runtime/sharded_runtime.h"
#include "tests/tensor/gradient_check.h"
#include "tests/tensor/plain_owner.h"

namespace zs::test::lm_head_test {
namespace {

constexpr std::int64_t kTokens = 65, kClasses = 131'073, kPadded = 131'200,
                       kWidth = 3;  // chunks of 32, 32 and 1 tokens

struct HeadResult {
  std::vector<float> loss, dx, dweight;
  bool operator==(const HeadResult&) const = default;
};

HeadResult run_head(DType dtype, std::optional<float> seed, float backward_seed, std::int64_t chunk = 0) {
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  Parameter weight("weight", {kPadded, kWidth}, {}, true);
  PlainOwner owner(context, dtype, DType::f32);
  owner.add(weight, to_floats(normal({kPadded, kWidth}, "weight").values));
  Tensor x = Tensor::from_host(context, {kTokens, kWidth}, to_floats(normal({kTokens, kWidth}, "x").values), dtype);
  x.set_requires_grad();
  const Tensor targets = Tensor::from_host(context, {kTokens}, random_ids(kTokens, kClasses, 9));
  const Tensor loss = lm_head_loss(x, weight, targets, kClasses, {.seed = seed, .chunk = chunk});
  backward(loss, backward_seed);
  CHECK(weight.early_gradients() == 0);
  return {loss.to_host(), x.grad().to_host(), owner.grad(weight).to_host()};
}

/// A head over one tensor, for the cases about its use.
struct SmallHead {
  std::unique_ptr<Device> device = Device::create(DeviceKind::meta, {});
  Context context{*device};
  Parameter weight{"weight", {8, 4}, {}, true};

  Tensor loss(float seed) {
    Tensor x = Tensor::zeros(context, {2, 4}, DType::f32);
    x.set_requires_grad();
    return lm_head_loss(x, weight, Tensor::from_host(context, {2}, std::vector<std::int32_t>{1, 2}), 8, {.seed = seed});
  }
};

}  // namespace

TEST_CASE("the head's gradients computed in forward are those of backward, bit for bit") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  CHECK(run_head(dtype, 0.25f, 0.25f) == run_head(dtype, std::nullopt, 0.25f));
}

TEST_CASE("the head's loss and gradients in chunks of any size agree") {
  const HeadResult whole = run_head(DType::f32, 0.25f, 0.25f, kTokens);
  const std::int64_t chunk = GENERATE(1, 7, 64);
  const HeadResult parts = run_head(DType::f32, 0.25f, 0.25f, chunk);
  CHECK(parts.loss[0] == Approx(whole.loss[0]).epsilon(1e-6));
  CHECK(parts.dx.size() == whole.dx.size());
  // dx sums over 131,073 classes, in another order where the chunk has another shape; its largest elements are near
  // 4e-3.
  for (std::size_t i = 0; i < whole.dx.size(); ++i)
    REQUIRE(parts.dx[i] == Approx(whole.dx[i]).epsilon(1e-4).margin(2e-5));
  for (std::size_t i = 0; i < whole.dweight.size(); ++i)
    REQUIRE(parts.dweight[i] == Approx(whole.dweight[i]).epsilon(1e-4).margin(1e-7));
}

TEST_CASE("tokens with the ignored target count for nothing") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  const std::int64_t width = 5, classes = 7;
  const std::optional<float> seed = GENERATE(std::optional<float>{}, std::optional<float>{0.5f});
  const bool has_weights = GENERATE(false, true);
  const std::int64_t chunk = GENERATE(2, 6);
  const auto run = [&](const std::vector<std::int32_t>& targets, const std::vector<float>& weights, int first) {
    const auto tokens = std::ssize(targets);
    Parameter weight("weight", {8, width}, {}, true);
    PlainOwner owner(context, DType::f32, DType::f32);
    owner.add(weight, to_floats(normal({8, width}, "weight").values));
    const std::vector<float> all = to_floats(normal({6, width}, "x").values);
    std::vector<float> rows(all.begin() + first * width, all.begin() + (first + tokens) * width);
    Tensor x = Tensor::from_host(context, {tokens, width}, rows);
    x.set_requires_grad();
    LossOptions options{.seed = seed, .chunk = chunk, .ignored = kIgnoredTarget};
    if (!weights.empty()) options.weights = Tensor::from_host(context, {tokens}, weights);
    const Tensor loss = lm_head_loss(x, weight, Tensor::from_host(context, {tokens}, targets), classes, options);
    backward(loss, 0.5f);
    return HeadResult{loss.to_host(), x.grad().to_host(), owner.grad(weight).to_host()};
  };
  // Of six tokens the first two, the fourth and the last count for nothing; with weights the sums are divided by all.
  constexpr std::int32_t kNot = kIgnoredTarget;
  const HeadResult masked =
      run({kNot, kNot, 3, kNot, 6, kNot}, has_weights ? std::vector<float>{9, 9, 2, 9, 4, 9} : std::vector<float>{}, 0);
  const HeadResult third = run({3}, {}, 2), fifth = run({6}, {}, 4);
  const float of_third = has_weights ? 2.0f / 6 : 0.5f, of_fifth = has_weights ? 4.0f / 6 : 0.5f;
  CHECK(masked.loss[0] == Approx(of_third * third.loss[0] + of_fifth * fifth.loss[0]));
  for (std::size_t i = 0; i < masked.dx.size(); ++i) {
    const std::size_t row = i / 5, column = i % 5;
    const float expected = row == 2 ? of_third * third.dx[column] : row == 4 ? of_fifth * fifth.dx[column] : 0.0f;
    CHECK(masked.dx[i] == Approx(expected).margin(1e-7));
  }
  for (std::size_t i = 0; i < masked.dweight.size(); ++i)
    CHECK(masked.dweight[i] == Approx(of_third * third.dweight[i] + of_fifth * fifth.dweight[i]).margin(1e-6));
}

TEST_CASE("the head holds the logits of as many tokens as it is told") {
  const auto device = Device::create(DeviceKind::meta, {});
  Context context(*device);
  Parameter weight("weight", {kPadded, kWidth}, {}, true);
  PlainOwner owner(context);
  owner.add(weight, std::vector<float>(kPadded * kWidth, 0.0f));
  const Tensor x = Tensor::zeros(context, {kTokens, kWidth}, DType::f32);
  const std::int64_t chunk = GENERATE(1, 24, 65, 1000);
  device->memory().reset_peak();
  lm_head_loss(x, weight, Tensor::from_host(context, {kTokens}, random_ids(kTokens, kClasses, 9)), kClasses,
               {.chunk = chunk});
  CHECK(device->memory().at_peak().at("logits") == std::min(chunk, kTokens) * kPadded * 4);
}

TEST_CASE("gradients computed in forward are refused by a backward with another seed or from another op") {
  SmallHead head;
  PlainOwner owner(head.context);
  owner.add(head.weight, std::vector<float>(32, 0.0f));
  CHECK_THROWS_WITH(backward(head.loss(0.5f), 1.0f), Catch::Contains("seed 0.5") && Catch::Contains("has seed 1"));
  CHECK_THROWS_WITH(backward(add(head.loss(0.5f), head.loss(0.5f)), 0.5f), Catch::Contains("starts elsewhere"));
}

TEST_CASE("without gradients the head's seed computes none") {
  SmallHead head;
  PlainOwner owner(head.context);
  owner.add(head.weight, std::vector<float>(32, 0.0f));
  const NoGradGuard no_grad(head.context);
  CHECK_FALSE(head.loss(0.5f).requires_grad());
  CHECK_FALSE(owner.grad(head.weight));
}

TEST_CASE("a micro-batch does not end with gradients of a loss that was not taken backward") {
  SmallHead head;
  const auto world = make_meta_world(0, 2);
  ShardedRuntime runtime(head.context, *world, {});
  runtime.add_unit("root", {&head.weight});
  runtime.begin_micro_batch(Mode::train, true);
  runtime.before_forward(0);
  const Tensor forgotten = head.loss(0.5f);
  runtime.after_forward(0);
  CHECK_THROWS_WITH(runtime.end_micro_batch(), Catch::Contains("weight") && Catch::Contains("not taken backward"));
  runtime.abandon();

  runtime.begin_micro_batch(Mode::train, true);
  runtime.before_forward(0);
  const Tensor loss = head.loss(0.5f);
  runtime.after_forward(0);
  backward(loss, 0.5f);
  CHECK_NOTHROW(runtime.end_micro_batch());
}

}  // namespace zs::test::lm_head_test
