// The norm of a step's gradients by any power, and clipping by it.
#include "runtime/shard/optimizers/grad_norm.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "runtime/tensor/host_view.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"
#include "tests/tensor/plain_owner.h"

namespace zs::test::grad_norm_test {
namespace {

using Catch::Contains;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kSamples = 6;
constexpr float kIgnoredGradient = 0.5f;

void accumulate(ChainRun& run) {
  const int ranks = run.runtime.executor().ranks(), each = kSamples / ranks;
  for (int i = 0; i < each; ++i) {
    run.runtime.begin_micro_batch(Mode::train, i + 1 == each);
    const Tensor x = chain_input(run.context, i * ranks + run.runtime.executor().rank());
    backward(run.model.loss(x, chain_targets(run.context)), 1.0f / static_cast<float>(each));
    run.runtime.end_micro_batch();
  }
}

/// A chain whose layer1.bias is ignored in sharding, and has a gradient all the same, alike on every rank.
struct WithIgnored {
  WithIgnored(World& world, const ShardOptions& options)
      : run(world, options,
            [](Chain& chain, ShardedRuntime& runtime) {
              shard_module(chain, runtime, Units::block,
                           [](const Parameter& parameter) { return parameter.name() == "layer1.bias"; });
            }),
        owner(run.context),
        ignored(run.model.layers[1]->bias),
        gradient(Tensor::from_host(run.context, {kChainWidth}, std::vector<float>(kChainWidth, kIgnoredGradient),
                                   DType::f32)) {
    owner.add(ignored, std::vector<float>(kChainWidth, 0.125f));
    ignored.set_trainable(false);
    accumulate(run);
    ignored.set_trainable(true);
    ignored.bind_grad(gradient.buffer(), true);
  }
  ~WithIgnored() {
    run.device->synchronize();
    ignored.bind_grad();
    ignored.set_owner(nullptr);
  }
  WithIgnored(const WithIgnored&) = delete;
  WithIgnored& operator=(const WithIgnored&) = delete;

  ChainRun run;
  PlainOwner owner;
  Parameter& ignored;
  Tensor gradient;
};

/// Of one rank, which has every element.
double plain_norm(double power) {
  const auto world = make_single_world({.timeout_s = 60});
  WithIgnored chain(*world, {});
  Executor& executor = chain.run.runtime.executor();
  executor.wait_reductions();
  chain.run.device->synchronize();
  std::vector<double> elements(kChainWidth, static_cast<double>(kIgnoredGradient));
  for (const FlatParameter& unit : executor.units()) {
    for (const FlatView& view : unit.layout->views()) {
      const float* const grad = unit.grad_buffer().slice(view.offset, view.numel).as<float>();
      elements.insert(elements.end(), grad, grad + view.numel);
    }
  }
  double sum = 0, most = 0;
  for (const double x : elements) {
    sum += std::pow(std::abs(x), power);
    most = std::max(most, std::abs(x));
  }
  return std::isinf(power) ? most : std::pow(sum, 1 / power);
}

struct Clipped {
  float before, after, ignored;
};
Clipped clip(World& world, const ShardOptions& options, float max_norm, const NormOptions& norm) {
  WithIgnored chain(world, options);
  Executor& executor = chain.run.runtime.executor();
  const Tensor before = clip_grad_norm(executor, max_norm, norm), after = clip_grad_norm(executor, 0, norm);
  return {before.to_host()[0], after.to_host()[0], chain.gradient.to_host()[kChainWidth - 1]};
}

}  // namespace

TEST_CASE("2A-28: gradients are clipped by a norm of any power that counts each element once, ignored ones too") {
  const NormOptions norm = GENERATE(NormOptions{.power = 1}, NormOptions{}, NormOptions{.order_free = true},
                                    NormOptions{.power = 3}, NormOptions{.power = kInfinity});
  const double expected = plain_norm(static_cast<double>(norm.power)), factor = 0.25;
  const auto most = static_cast<float>(expected * factor);
  for (const LayoutOptions& layout :
       {LayoutOptions{}, LayoutOptions{.layout = Layout::per_parameter, .min_shard_bytes = 100}}) {
    for (const std::string name : {"ddp", "zero1", "zero2", "zero3", "shard_grad_op", "hsdp", "nested"}) {
      for (const int ranks : {1, 2, 3}) {
        CAPTURE(name, ranks, norm.power, name_of(layout.layout));
        const auto results = on_ranks(ranks, [&](World& world) {
          return clip(world, {.scheme = scheme_of(name, ranks), .layout = layout, .seed = 0}, most, norm);
        });
        for (const Clipped& result : results) {
          CHECK(result.before == Approx(expected).epsilon(1e-5));
          CHECK(result.after == Approx(expected * factor).epsilon(1e-5));
          CHECK(result.ignored == Approx(static_cast<double>(kIgnoredGradient) * factor).epsilon(1e-5));
        }
      }
    }
  }
}

TEST_CASE("a norm that is small enough leaves the gradients as they are, and so does one that is not finite") {
  const float value = GENERATE(kIgnoredGradient, kInfinity);
  const auto world = make_single_world({.timeout_s = 60});
  WithIgnored chain(*world, {});
  chain.gradient =
      Tensor::from_host(chain.run.context, {kChainWidth}, std::vector<float>(kChainWidth, value), DType::f32);
  chain.ignored.bind_grad(chain.gradient.buffer(), true);
  Executor& executor = chain.run.runtime.executor();
  executor.wait_reductions();
  const auto before = chain.run.gradients();
  const auto weights = chain.run.weights();
  const Tensor norm = clip_grad_norm(executor, 1e6f);
  CHECK(std::isfinite(norm.to_host()[0]) == std::isfinite(value));
  CHECK(chain.run.gradients() == before);
  chain.run.optimizer->step(1e-2f);
  CHECK(chain.run.optimizer->skipped() ==
        (std::isfinite(value) ? 0 : 1));  // what is ignored counts in the optimizer's norm too
  CHECK((chain.run.weights() == weights) == !std::isfinite(value));
}

TEST_CASE("the optimizer's own norm counts gradients of ignored parameters once") {
  const double expected = plain_norm(2);
  for (const std::string name : {"ddp", "zero3", "hsdp"}) {
    const auto norms = on_ranks(2, [&](World& world) {
      WithIgnored chain(world, {.scheme = scheme_of(name, 2)});
      chain.run.optimizer->step(1e-2f);
      return *HostView(chain.run.context, chain.run.context.stream(), chain.run.optimizer->grad_norm()).as<float>();
    });
    for (const float norm : norms) CHECK(norm == Approx(expected).epsilon(1e-5));
  }
}

TEST_CASE("clipping before the step is the optimizer's own clipping") {
  const auto weights = on_ranks(2, [](World& world) {
    const auto train = [&](bool is_before) {
      ChainRun run(world);
      run.optimizer.emplace(run.runtime.executor(), AdamWConfig{.eps = 1e-2f, .clip = is_before ? 0.0f : 0.125f});
      for (int step = 1; step <= 3; ++step) {
        accumulate(run);
        if (is_before) clip_grad_norm(run.runtime.executor(), 0.125f);
        run.optimizer->step(1e-2f, step);
      }
      return run.weights();
    };
    return std::pair(train(true), train(false));
  });
  for (const auto& [before, own] : weights) {
    for (std::size_t i = 0; i < own.size(); ++i)
      for (std::size_t j = 0; j < own[i].size(); ++j)
        CHECK(before[i][j] == Approx(own[i][j]).epsilon(1e-5).margin(1e-6));
  }
}

TEST_CASE("a clip that cannot be done is an error that says why, and ranks that clip otherwise are stopped") {
  const auto world = make_single_world({.timeout_s = 60});
  ChainRun run(*world);
  Executor& executor = run.runtime.executor();
  const auto problem = [&](float most, const NormOptions& norm) {
    return message_of([&] { clip_grad_norm(executor, most, norm); });
  };
  CHECK_THAT(problem(1, {.power = 0}), Contains("by a norm of power 0"));
  CHECK_THAT(problem(-1, {}), Contains("to a norm of -1"));
  CHECK_THAT(problem(std::nanf(""), {}), Contains("to a norm of nan"));
  CHECK_THAT(problem(1, {.power = 3, .order_free = true}), Contains("no order-free sum of power 3"));
  CHECK_FALSE(problem(1, {}).empty());  // no micro-batch has been
  const auto messages = on_ranks(2, [](World& two) {
    return message_of([&] {
      ChainRun other(two);
      accumulate(other);
      clip_grad_norm(other.runtime.executor(), two.rank() == 0 ? 1.0f : 2.0f);
      other.device->synchronize();
    });
  });
  for (const std::string& message : messages)
    CHECK_THAT(message,
               Contains("largest norm of the gradient (clip_grad_norm) in step 1: rank 0 has 1, rank 1 has 2"));
}

}  // namespace zs::test::grad_norm_test
