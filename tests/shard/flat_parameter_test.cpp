// The persistent and the transient buffers of a sharded model, looked at from outside.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "tests/shard/chain_model.h"

namespace zs::test::flat_parameter_test {
namespace {

using Values = std::vector<float>;

Values read(const Buffer& buffer) { return {buffer.as<float>(), buffer.as<float>() + buffer.elems}; }

/// The elements of a buffer that belong to no segment.
Values padding_of(const std::vector<ShardSegment>& segments, const Buffer& shard) {
  std::vector<bool> is_used(static_cast<std::size_t>(shard.elems));
  for (const ShardSegment& segment : segments) {
    std::fill_n(is_used.begin() + segment.shard_offset, segment.count, true);
  }
  Values padding;
  for (std::int64_t i = 0; i < shard.elems; ++i) {
    if (!is_used[static_cast<std::size_t>(i)]) padding.push_back(shard.as<float>()[i]);
  }
  return padding;
}

bool is_all_zero(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
}

double square_sum(const Values& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

/// A chain's biases are 40 bytes long, in bf16 20.
std::vector<LayoutOptions> layouts() {
  const ChooseDim last = [](std::string_view, const Shape&) { return -1; };
  return {{}, {.layout = Layout::per_parameter}, {.layout = Layout::per_parameter, .min_shard_bytes = 50, .dim = last}};
}

struct PaddingResult {
  std::size_t elements = 0;
  bool is_zero = true;
  double norm = 0, square_sum = 0;
};

PaddingResult padding_after_steps(World& world, DType dtype, const LayoutOptions& layout) {
  ChainRun run(world,
               {.precision = {.param = dtype, .reduce = dtype}, .layout = layout, .division = {Division::Rule::none}});
  PaddingResult result;
  for (int step = 1; step <= 3; ++step) {
    run.micro_batch(step);
    run.device->synchronize();
    result.square_sum = 0;
    for (const FlatParameter& unit : run.runtime.executor().units()) {
      const Values padding = padding_of(unit.segments(), unit.grad_buffer());
      result.is_zero = result.is_zero && is_all_zero(padding);
      result.elements += padding.size();
      result.square_sum += square_sum(read(unit.grad_buffer()));
    }
    run.optimizer->step(1e-2f, step);
    run.device->synchronize();
    result.norm = static_cast<double>(read(run.optimizer->grad_norm())[0]);
    for (const FlatParameter& unit : run.runtime.executor().units()) {
      result.is_zero = result.is_zero && is_all_zero(padding_of(unit.held_segments(), unit.master_buffer()));
    }
  }
  return result;
}

}  // namespace

TEST_CASE("I3: padding is zero in masters and gradients after every step, and adds nothing to the norm") {
  const int ranks = GENERATE(1, 2, 3, 8);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const LayoutOptions layout = GENERATE(from_range(layouts()));
  CAPTURE(ranks, name_of(dtype), name_of(layout.layout), layout.min_shard_bytes);
  double sum = 0;
  std::size_t elements = 0;
  const auto results = on_ranks(ranks, [&](World& world) { return padding_after_steps(world, dtype, layout); });
  for (const PaddingResult& result : results) {
    CHECK(result.is_zero);
    elements += result.elements;
    sum += result.square_sum;
  }
  CHECK(elements > 0);
  CHECK(results.front().norm ==
        Approx(std::sqrt(sum)).epsilon(1e-5));  // the sum of a few hundred squares, rounded to f32 once
}

TEST_CASE(
    "masters and reduced gradients are f32 shards whatever the runtime dtype, and a run in f32 has no other copy") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const auto is_right = on_ranks(2, [&](World& world) {
    const ChainRun run(world, {.precision = {.param = dtype}});
    for (const FlatParameter& unit : run.runtime.executor().units()) {
      const std::int64_t elems = unit.layout->full_elems() / 2;
      if (unit.master_buffer().dtype != DType::f32 || unit.master_buffer().elems != elems) return false;
      if (unit.grad_buffer().dtype != DType::f32 || unit.grad_buffer().elems != elems) return false;
      if (unit.compute_copy_buffer().empty() != (dtype == DType::f32)) return false;
      if (unit.param_buffer().dtype != dtype || unit.param_buffer().elems != elems) return false;
    }
    return run.device->memory().live_by_label().contains("param_shard") == (dtype == DType::bf16);
  });
  CHECK(is_right == std::vector<bool>{true, true});
}

TEST_CASE("parameters are views of their unit's full buffer while it is unsharded, and bound to nothing otherwise",
          "[views]") {
  const bool zero_copy = GENERATE(false, true);
  const auto problems = on_ranks(2, [&](World& world) {
    ChainRun run(world, {.zero_copy = zero_copy});
    std::string problem;
    const auto expect = [&](bool holds, const char* what) { problem += holds ? "" : fmt::format("{}; ", what); };
    const auto is_bound = [](const Parameter& parameter) {
      try {
        return parameter.value().elems == parameter.numel();
      } catch (const Error&) {
        return false;
      }
    };
    ChainLayer& layer = *run.model.layers[0];
    const FlatParameter& unit = run.runtime.executor().units()[1];
    expect(!is_bound(layer.weight), "bound before its forward");
    run.runtime.begin_micro_batch(Mode::train, true);
    run.runtime.before_forward(1);
    expect(is_bound(layer.weight) && is_bound(layer.bias), "not bound in its forward");
    const auto* full = static_cast<const std::byte*>(zero_copy ? unit.shared.data : unit.full.address());
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const auto* value = static_cast<const std::byte*>(unit.parameters[i]->value().data);
      expect(value - full == unit.layout->views()[i].offset * size_of(DType::f32),
             "not at its offset in the full buffer");
    }
    expect(!is_bound(run.model.layers[1]->weight), "another unit's is bound too");
    run.runtime.after_forward(1);
    expect(!is_bound(layer.weight), "bound after its forward");
    run.runtime.end_micro_batch();
    return problem;
  });
  CHECK(problems == std::vector<std::string>{"", ""});
}

TEST_CASE("weight decay leaves a parameter without decay alone") {
  const auto results = on_ranks(2, [](World& world) {
    ChainRun run(world);
    AdamW decay_only(run.runtime.executor(), {.weight_decay = 0.5f});
    const auto before = run.weights();
    run.micro_batch(0, true, 0.0f);  // every gradient is zero, so that decay is all that happens
    decay_only.step(0.5f, 1);
    const auto after = run.weights();
    bool is_right = true;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const float kept = i == 0 || i % 2 == 1 ? 0.75f : 1.0f;  // the head and the weights decay, biases do not
      for (std::size_t k = 0; k < before[i].size(); ++k) {
        is_right = is_right && std::abs(after[i][k] - kept * before[i][k]) <= 1e-6f * std::abs(before[i][k]);
      }
    }
    return is_right;
  });
  CHECK(results == std::vector<bool>{true, true});
}

TEST_CASE("each rank draws its own shard alone, and all ranks together the weights that one rank draws") {
  const auto weights = [](int ranks) {
    return on_ranks(ranks, [](World& world) { return ChainRun(world, {.seed = 5}).weights(); });
  };
  const auto alone = weights(1);
  const int ranks = GENERATE(2, 3, 8);
  CAPTURE(ranks);
  for (const auto& rank : weights(ranks)) CHECK(rank == alone.front());
  const auto held = on_ranks(ranks, [](World& world) {
    const ChainRun run(world);
    return run.device->memory().live_by_label().at("master");
  });
  std::int64_t full = 0;
  const auto world = make_single_world({.timeout_s = 60});
  const ChainRun single(*world);
  for (const FlatParameter& unit : single.runtime.executor().units()) full += unit.layout->full_elems();
  for (const std::int64_t bytes : held) CHECK(bytes < full * size_of(DType::f32));
}

}  // namespace zs::test::flat_parameter_test
