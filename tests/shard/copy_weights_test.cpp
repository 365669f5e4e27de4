// Weights of one model in another: copies, averages, and what does not go together.
#include "runtime/shard/checkpoint/copy_weights.h"

#include <catch2/catch.hpp>

#include <map>

#include "model/nn/batch_norm.h"
#include "model/nn/linear.h"
#include "model/sharding/fully_shard.h"
#include "runtime/shard/optimizers/sgd.h"
#include "runtime/tensor/reduction.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"

namespace zs::test::copy_weights_test {
namespace {

using Catch::Contains;
using Floats = std::vector<float>;

struct Net : Layer<Net> {
  explicit Net(std::int64_t width = 5)
      : in(make_child<Linear>("in", 3, width, LinearOptions{.init = {.normal_std = 0.5f}})),
        norm(make_child<BatchNorm>("norm", width)) {
    fully_shard(in);
  }
  Tensor forward(const Tensor& x) { return norm(in(x)); }
  Linear& in;
  BatchNorm& norm;
};

Floats weights_of(ShardedModel& model) {
  Floats all;
  for (int unit = 0; unit < 2; ++unit)
    model.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
      all.insert(all.end(), values, values + parameter.numel());
    });
  return all;
}

Floats evaluated(ShardedModel& model, Net& net, Context& context) {
  auto evaluation = model.evaluation();
  return net(Tensor::from_host(context, {2, 3}, Floats{1, -2, 3, 0.5f, 1, 2})).to_host();
}

void step(ShardedModel& model, Net& net, Optimizer& optimizer, Context& context) {
  auto micro_batch = model.micro_batch();
  const Tensor y = net(Tensor::from_host(context, {3, 3}, Floats{1, 2, 3, -1, 0, 2, 1, 1, -2}));
  sum(cast(mul(y, y), DType::f32) * Tensor::from_host(context, {3, 1}, Floats{1, 2, 3})).backward();
  micro_batch.end();
  optimizer.step(0.1f);
}

}  // namespace

TEST_CASE("weights are copied and averaged into another model, buffers and compute copies too") {
  const Strategy strategy = GENERATE(Strategy::zero3, Strategy::ddp);
  const DType param = GENERATE(DType::f32, DType::bf16);
  const bool zero_copy = GENERATE(true, false);
  CAPTURE(static_cast<int>(strategy), name_of(param), zero_copy);
  on_ranks(2, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Context context(*device);
    const auto options = [&](std::uint64_t seed) {
      return FullyShardOptions{
          .shard = {
              .scheme = {.strategy = strategy}, .precision = {.param = param}, .seed = seed, .zero_copy = zero_copy}};
    };
    Net net, average_net;
    ShardedModel model = fully_shard(net, context, world, options(1)),
                 average = fully_shard(average_net, context, world, options(2));
    Sgd optimizer(model.executor(), {});
    step(model, net, optimizer, context);
    const Floats trained = weights_of(model), drawn = weights_of(average);
    CHECK(trained != drawn);
    copy_weights(model, average, 0.25f);
    const Floats blended = weights_of(average);
    for (std::size_t i = 0; i < blended.size(); ++i)
      CHECK(blended[i] == Approx(0.25f * trained[i] + 0.75f * drawn[i]).epsilon(1e-6).margin(1e-7));
    copy_weights(model, average);
    CHECK(weights_of(average) == trained);
    CHECK(evaluated(average, average_net, context) == evaluated(model, net, context));
    step(model, net, optimizer, context);
    CHECK(weights_of(average) == trained);
    return 0;
  });
}

TEST_CASE("weights that do not go together are refused by name") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  const auto world = make_single_world({});
  Net net, wide(6);
  ShardedModel model = fully_shard(net, context, *world), other = fully_shard(wide, context, *world);
  CHECK_THAT(coded_message_of([&] { copy_weights(model, other); }), Contains("64: ") && Contains("norm.weight"));
  CHECK_THAT(coded_message_of([&] { copy_weights(model, model); }), Contains("64: ") && Contains("itself"));
  Net same;
  ShardedModel third = fully_shard(same, context, *world);
  auto micro_batch = third.micro_batch();
  CHECK_THAT(coded_message_of([&] { copy_weights(model, third); }), Contains("64: ") && Contains("micro-batch"));
  mean(same(Tensor::from_host(context, {2, 3}, Floats(6, 1.0f)))).backward();
}

}  // namespace zs::test::copy_weights_test
