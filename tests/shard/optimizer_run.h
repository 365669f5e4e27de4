#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/shard/optimizers/optimizer.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"

/// A chain that any optimizer trains, on any number of ranks, and the same in plain arithmetic.
namespace zs::test {

inline constexpr double kLr = 0.02;
using Arrays = std::vector<std::vector<float>>;

using Make = std::function<std::unique_ptr<Optimizer>(Executor&)>;
template <class Kind, class Options>
Make maker_of(const Options& options) {
  return [options](Executor& executor) { return std::make_unique<Kind>(executor, options); };
}

struct Run {
  Run(World& of, const SchemeOptions& scheme, const Make& make, DType param = DType::f32,
      const LayoutOptions& layout = {}, const Residence& residence = {})
      : world(of),
        dtype(param),
        device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        runtime(context, of, options_of(scheme, param, layout, residence)) {
    model.layers[1]->weight.set_matrix_rows({3, 6});  // to Muon two matrices, and a row of padding
    shard_module(model, runtime, Units::block);
    optimizer = make(runtime.executor());
  }
  static ShardOptions options_of(SchemeOptions scheme, DType param, const LayoutOptions& layout,
                                 const Residence& residence) {
    scheme.deterministic = true;
    ShardOptions options{.scheme = scheme, .precision = {.param = param}, .layout = layout, .seed = 3};
    options.residence = residence;
    return in_tests(options);
  }
  /// So many samples, whatever the ranks.
  void accumulate(int step) {
    const int each = samples / world.size();
    for (int i = 0; i < each; ++i) {
      runtime.begin_micro_batch(Mode::train, i + 1 == each);
      backward(model.loss(chain_input(context, step * samples + i * world.size() + world.rank(), dtype),
                          chain_targets(context)),
               1.0f / static_cast<float>(each));
      runtime.end_micro_batch();
    }
  }
  void step(int number) {
    accumulate(number);
    optimizer->step(static_cast<float>(kLr), number);
  }
  Arrays weights() {
    Arrays all;
    for (int unit = 0; unit < runtime.scheduler().size(); ++unit) {
      runtime.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
        all.emplace_back(values, values + parameter.numel());
      });
    }
    return all;
  }

  World& world;
  DType dtype;
  int samples = 4;
  std::unique_ptr<Device> device;
  Context context;
  Chain model;
  ShardedRuntime runtime;
  std::unique_ptr<Optimizer> optimizer;
};

inline Arrays train(World& world, const SchemeOptions& scheme, const Make& make, DType param = DType::f32) {
  Run run(world, scheme, make, param);
  for (int step = 1; step <= 3; ++step) run.step(step);
  return run.weights();
}

/// An element and its state, in double precision.
struct Element {
  double w, m, v;
};
using Rule = std::function<void(Element& element, double grad, bool has_decay, int step)>;

/// What one step makes of a parameter.
using ParameterRule =
    std::function<void(std::vector<Element>& elements, const float* grad, const FlatView& view, int step)>;

inline ParameterRule each(const Rule& rule) {
  return [rule](std::vector<Element>& elements, const float* grad, const FlatView& view, int step) {
    for (std::size_t i = 0; i < elements.size(); ++i)
      rule(elements[i], static_cast<double>(grad[i]), view.has_decay, step);
  };
}

/// Of every parameter, by the formula in double precision, from the gradients of one rank.
inline Arrays by_formula(const Make& make, const ParameterRule& rule, int steps, int samples) {
  const auto world = make_single_world({.timeout_s = 60});
  Run run(*world, {}, make);
  run.samples = samples;
  std::vector<std::vector<Element>> expected;
  for (const auto& values : run.weights()) {
    expected.emplace_back();
    for (const float value : values) expected.back().push_back({static_cast<double>(value), 0, 0});
  }
  for (int step = 1; step <= steps; ++step) {
    run.accumulate(step);
    run.runtime.executor().wait_reductions();
    run.device->synchronize();
    std::size_t parameter = 0;
    for (const FlatParameter& unit : run.runtime.executor().units()) {
      for (const FlatView& view : unit.layout->views()) {
        rule(expected[parameter++], unit.grad_buffer().slice(view.offset, view.numel).as<float>(), view, step);
      }
    }
    run.optimizer->step(static_cast<float>(kLr), step);
  }
  Arrays rounded;
  for (const auto& values : expected) {
    rounded.emplace_back();
    for (const Element& element : values) rounded.back().push_back(static_cast<float>(element.w));
  }
  return rounded;
}

/// The largest distance of two elements.
inline double distance(const Arrays& a, const Arrays& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[i].size(); ++j)
      most = std::max(most, std::abs(static_cast<double>(a[i][j]) - static_cast<double>(b[i][j])));
  return most;
}

/// Checks 20 steps in every strategy and layout, at 1, 2 and 3 ranks.
inline void check_everywhere(const Make& make, const ParameterRule& rule, double tolerance) {
  constexpr int kSteps = 20, kSamples = 6;
  const Arrays expected = by_formula(make, rule, kSteps, kSamples);
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3", "shard_grad_op", "hsdp", "nested"}) {
    for (const LayoutOptions& layout :
         {LayoutOptions{}, LayoutOptions{.layout = Layout::per_parameter, .min_shard_bytes = 100}}) {
      for (const int ranks : {1, 2, 3}) {
        CAPTURE(name, name_of(layout.layout), ranks);
        const Arrays trained = on_ranks(ranks, [&](World& world) {
          Run run(world, scheme_of(name, ranks), make, DType::f32, layout);
          run.samples = kSamples;
          for (int step = 1; step <= kSteps; ++step) run.step(step);
          return run.weights();
        })[static_cast<std::size_t>(ranks) - 1];
        CHECK(distance(trained, expected) < tolerance);
      }
    }
  }
}

}  // namespace zs::test
