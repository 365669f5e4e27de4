#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/nn/module.h"
#include "runtime/shard/optimizers/adamw.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/ops.h"
#include "tests/shard/zero_copy_asked.h"

namespace zs::test {

/// A chain of layers, each a block, behind a root that owns the head: a trainer of one's own, small enough to follow by
/// hand. No parameter's size is a multiple of the alignment.
inline constexpr std::int64_t kChainWidth = 10, kChainRows = 6;

struct ChainLayer : Module {
  explicit ChainLayer(std::string path)
      : Module(std::move(path)),
        weight(add_parameter("weight", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true)),
        bias(add_parameter("bias", {kChainWidth}, {.constant = 0.125f}, false)) {}
  bool is_block() const override { return true; }
  Tensor forward(const Tensor& x) {
    const ForwardScope scope = enter();
    return add(x, output(gelu(linear(input(x), weight, &bias), GeluKind::tanh)));
  }
  Parameter &weight, &bias;
};

struct Chain : Module {
  explicit Chain(int layer_count = 3)
      : Module(""), head(add_parameter("head", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true)) {
    for (int i = 0; i < layer_count; ++i)
      add_child(*layers.emplace_back(std::make_unique<ChainLayer>(fmt::format("layer{}", i))));
  }
  Tensor loss(const Tensor& x, const Tensor& targets) {
    const ForwardScope scope = enter();
    Tensor y = output(linear(input(x), head, nullptr));
    for (const auto& layer : layers) y = layer->forward(y);
    return lm_head_loss(input(y), head, targets, kChainWidth);
  }
  Parameter& head;
  std::vector<std::unique_ptr<ChainLayer>> layers;
};

/// Rows that depend on `sample` alone.
inline Tensor chain_input(Context& context, int sample, DType dtype = DType::f32) {
  std::vector<float> x(kChainRows * kChainWidth);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(sample) * 3) % 11) * 0.25f - 1.0f;
  return Tensor::from_host(context, {kChainRows, kChainWidth}, x, dtype);
}

inline Tensor chain_targets(Context& context) {
  std::vector<std::int32_t> targets(kChainRows);
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(i % kChainWidth);
  return Tensor::from_host(context, {kChainRows}, std::move(targets));
}

inline ShardOptions in_tests(ShardOptions options) {
  options.zero_copy = zero_copy_in_tests(options.zero_copy);
  return options;
}

/// A chain on one rank of `world`, and everything that it needs.
class ChainRun {
 public:
  explicit ChainRun(World& world, const ShardOptions& options = {}, Units units = Units::block)
      : ChainRun(world, options,
                 [units](Chain& chain, ShardedRuntime& target) { shard_module(chain, target, units); }) {}
  template <class Shard>
  ChainRun(World& world, const ShardOptions& options, const Shard& shard)
      : dtype_(options.precision.param),
        device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        runtime(context, world, in_tests(options)) {
    shard(model, runtime);
    optimizer.emplace(runtime.executor(), AdamWConfig{});
  }

  /// Sample `sample` of this rank's share of the data, forward and backward.
  float micro_batch(int sample, bool is_last = true, float seed = 1.0f) {
    runtime.begin_micro_batch(Mode::train, is_last);
    const Tensor loss =
        model.loss(chain_input(context, sample * 8 + runtime.data_share().index, dtype_), chain_targets(context));
    backward(loss, seed);
    runtime.end_micro_batch();
    return loss.to_host()[0];
  }
  /// This rank's shards of the reduced gradients, unit by unit, padding included.
  std::vector<std::vector<float>> gradients() {
    device->synchronize();
    std::vector<std::vector<float>> all;
    for (const FlatParameter& unit : runtime.executor().units()) {
      const Buffer grad = unit.grad_buffer();
      all.emplace_back(grad.as<float>(), grad.as<float>() + grad.elems);
    }
    return all;
  }
  std::ptrdiff_t count(Action::Kind kind, int unit) const {
    const auto& actions = runtime.actions();
    return std::count(actions.begin(), actions.end(), Action{kind, unit});
  }
  /// Gathers the weights: every parameter's values, in the order of units.
  std::vector<std::vector<float>> weights() {
    std::vector<std::vector<float>> all;
    for (int unit = 0; unit < runtime.scheduler().size(); ++unit) {
      runtime.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
        all.emplace_back(values, values + parameter.numel());
      });
    }
    return all;
  }

 private:
  DType dtype_;

 public:
  std::unique_ptr<Device> device;
  Context context;
  Chain model;
  ShardedRuntime runtime;
  std::optional<AdamW> optimizer;
};

/// What `body` returns on each rank of a local world, in the order of ranks. Catch's macros are for one thread only:
/// check it afterwards.
template <class Body>
auto on_ranks(int ranks, const Body& body) {
  std::deque<decltype(body(std::declval<World&>()))> results(
      static_cast<std::size_t>(ranks));  // a vector of bool would share bytes
  run_local_world(ranks, {.timeout_s = 60},
                  [&](World& world) { results[static_cast<std::size_t>(world.rank())] = body(world); });
  return std::vector(results.begin(), results.end());
}

}  // namespace zs::test
