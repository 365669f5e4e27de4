// A network of convolutions and batch norms: its buffers, over ranks and in checkpoints.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <tuple>

#include "model/nn/batch_norm.h"
#include "model/nn/conv.h"
#include "model/sharding/fully_shard.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "runtime/shard/checkpoint/held_state.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/recompute.h"
#include "runtime/tensor/reduction.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"

namespace zs::test::conv_net_test {
namespace {

using Catch::Contains;
using Floats = std::vector<float>;

constexpr std::int64_t kImages = 3, kSize = 6, kChannels = 4;

struct ConvNet : Layer<ConvNet> {
  Conv2d& conv = make_child<Conv2d>("conv", 2, kChannels, 3, Conv2dOptions{.stride = 2, .padding = 1});
  BatchNorm& norm = make_child<BatchNorm>("norm", kChannels);
  bool recomputes = false;
  Tensor of_conv;  // of the last forward
  Tensor forward(const Tensor& x) {
    const auto body = [this](const std::vector<Tensor>& in) {
      const Tensor y = conv(in[0]);
      of_conv = y.detach();
      return norm(y);
    };
    return recomputes ? recompute({x}, TensorFunction(body)) : body({x});
  }
};

Tensor loss_of(const Tensor& features) { return sum(cast(max_pool2d(relu(features), {3, 3}), DType::f32)); }

struct Rank {
  explicit Rank(World& in, DType param = DType::f32)
      : world(in),
        device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        model(fully_shard(net, context, world, {.shard = {.precision = {.param = param}, .seed = 5}})),
        optimizer(model.executor(), {}) {}

  Tensor images(int number) {
    Floats values(kImages * 2 * kSize * kSize);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = std::sin(static_cast<float>(i * (i + static_cast<std::size_t>(number) * 7) % 101));
    return Tensor::from_host(context, {kImages, 2, kSize, kSize}, values);
  }
  void step(int number) {
    auto micro_batch = model.micro_batch();
    loss_of(net(images(number))).backward();
    micro_batch.end();
    optimizer.step(1e-2f);
  }
  Floats evaluate() {
    auto evaluation = model.evaluation();
    return net(images(9)).to_host();
  }
  Floats buffer(std::size_t i) {
    device->synchronize();
    const Buffer value = net.norm.own_buffers()[i]->value();
    return {value.as<float>(), value.as<float>() + value.elems};
  }
  TrainingState state() { return {world, model.executor(), optimizer}; }

  World& world;
  std::unique_ptr<Device> device;
  Context context;
  ConvNet net;
  ShardedModel model;
  AdamW optimizer;
};

/// Of each channel, over a rank's images: the mean, and the variance of a sample.
std::pair<Floats, Floats> statistics(const Floats& x) {
  const std::size_t pixels = x.size() / (kImages * kChannels), count = kImages * pixels;
  Floats means, variances;
  for (std::size_t c = 0; c < kChannels; ++c) {
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < count; ++i)
      sum += static_cast<double>(x[(i / pixels * kChannels + c) * pixels + i % pixels]);
    const double mean = sum / static_cast<double>(count);
    for (std::size_t i = 0; i < count; ++i)
      squares += std::pow(static_cast<double>(x[(i / pixels * kChannels + c) * pixels + i % pixels]) - mean, 2);
    means.push_back(static_cast<float>(mean));
    variances.push_back(static_cast<float>(squares / static_cast<double>(count - 1)));
  }
  return {means, variances};
}

}  // namespace

TEST_CASE("running statistics are those of all ranks' micro-batches, alike on each, and evaluations go by them") {
  struct Seen {
    Floats mean, variance, local_mean, local_variance, evaluated, of_conv;
  };
  const auto seen = on_ranks(2, [](World& world) {
    Rank rank(world);
    Seen all;
    {
      auto micro_batch = rank.model.micro_batch();
      loss_of(rank.net(rank.images(world.rank()))).backward();
      std::tie(all.local_mean, all.local_variance) = statistics(rank.net.of_conv.to_host());
    }
    rank.model.runtime().abandon_step();
    all.mean = rank.buffer(0), all.variance = rank.buffer(1);
    all.evaluated = rank.evaluate();
    all.of_conv = rank.net.of_conv.to_host();
    return all;
  });
  CHECK(seen[0].mean == seen[1].mean);
  CHECK(seen[0].variance == seen[1].variance);
  CHECK(seen[0].evaluated == seen[1].evaluated);
  for (std::size_t c = 0; c < kChannels; ++c) {
    CHECK(seen[0].mean[c] == Approx(0.05 * (seen[0].local_mean[c] + seen[1].local_mean[c])).margin(1e-6));
    CHECK(seen[0].variance[c] == Approx(0.9 + 0.05 * (seen[0].local_variance[c] + seen[1].local_variance[c])));
  }
  const std::size_t pixels = seen[0].of_conv.size() / (kImages * kChannels);
  for (std::size_t i = 0; i < seen[0].of_conv.size(); ++i) {
    const std::size_t c = i / pixels % kChannels;
    CHECK(seen[0].evaluated[i] ==
          Approx((seen[0].of_conv[i] - seen[0].mean[c]) / std::sqrt(seen[0].variance[c] + 1e-5)).margin(1e-5));
  }
}

TEST_CASE("a checkpoint holds buffers by name, and is loaded at another number of ranks") {
  const TempDir folder;
  const DType param = GENERATE(DType::f32, DType::bf16);
  const auto saved = on_ranks(2, [&](World& world) {
    Rank rank(world, param);
    for (int i = 0; i < 2; ++i) rank.step(2 * i + world.rank());
    save(rank.state(), folder.path(), {.step = 2});
    return std::vector{rank.buffer(0), rank.buffer(1), rank.evaluate()};
  });
  const auto world = make_single_world({});
  Rank rank(*world, param);
  CHECK(rank.buffer(0) == Floats(kChannels, 0));
  CHECK(rank.buffer(1) == Floats(kChannels, 1));
  load(rank.state(), fmt::format("{}/step-2", folder.path()));
  CHECK(rank.buffer(0) == saved[0][0]);
  CHECK(rank.buffer(1) == saved[0][1]);
  CHECK(rank.evaluate() == saved[0][2]);
  CHECK(CheckpointReader(fmt::format("{}/step-2", folder.path())).find("norm.running_var", kMasterKind).has_value());
}

TEST_CASE("a batch norm that is computed again counts its batch once, and gives the same bits") {
  const auto run = [](bool recomputes) {
    const auto world = make_single_world({});
    Rank rank(*world);
    rank.net.recomputes = recomputes;
    for (int i = 0; i < 2; ++i) rank.step(i);
    return std::vector{rank.buffer(0), rank.buffer(1), rank.evaluate()};
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("numbers of the host, and tensors, have a mean over ranks") {
  const auto means = on_ranks(3, [](World& world) {
    Rank rank(world);
    const Tensor x = Tensor::from_host(rank.context, {2}, Floats{static_cast<float>(world.rank()), 3});
    const Floats of_tensor = rank.model.runtime().mean_over_ranks(x).to_host();
    return std::pair(rank.model.runtime().mean_over_ranks(3.0 * world.rank()), of_tensor);
  });
  for (const auto& [of_number, of_tensor] : means) {
    CHECK(of_number == Approx(3));
    CHECK(of_tensor[0] == Approx(1));
    CHECK(of_tensor[1] == Approx(3));
  }
}

TEST_CASE("a wrong use of a convolution, a pool or a batch norm is refused, and says what to do") {
  const auto world = make_single_world({});
  Rank rank(*world);
  const auto image = [&](Shape shape) {
    return Tensor::from_host(rank.context, shape, Floats(static_cast<std::size_t>(shape.numel())));
  };
  const auto in_training = [&](const std::function<void()>& body) {
    return message_of([&] {
      auto micro_batch = rank.model.micro_batch();
      body();
    });
  };
  CHECK_THAT(in_training([&] { rank.net(image({2, 3, 6, 6})); }), Contains("conv.weight") && Contains("(batch, 2, "));
  CHECK_THAT(in_training([&] { rank.net(image({2, 6})); }), Contains("op conv2d of f32 (2, 6)"));
  CHECK_THAT(in_training([&] { rank.net.norm(image({1, kChannels})); }), Contains("1 element a channel"));
  CHECK_THAT(in_training([&] { rank.net.norm(image({2, 3})); }), Contains("(batch, 4, ...)"));
  CHECK_THAT(message_of([&] { max_pool2d(image({1, 1, 4, 4}), {2, 2, 1, 1}); }), Contains("padding of 1"));
  CHECK_THAT(message_of([&] { mean_pool2d(image({4, 4}), {2, 2}); }), Contains("op mean_pool2d of f32 (4, 4)"));
  CHECK_THAT(message_of([&] { max_pool2d(image({1, 1, 2, 2}), {3, 3}); }), Contains("windows of 3 x 3"));
  CHECK_THAT(message_of([] { Conv2d("c", 0, 1, 3); }),
             Contains("convolution \"c\" of 0 to 1 channels") && Contains("at least 1"));
  BatchNorm alone("alone", 4);
  CHECK_THAT(message_of([&] { alone(image({2, 4})); }), Contains("outside of a sharded model"));
  CHECK_THAT(message_of([&] { rank.model.runtime().mean_over_ranks(Tensor{}); }), Contains("an empty tensor"));
}

}  // namespace zs::test::conv_net_test
