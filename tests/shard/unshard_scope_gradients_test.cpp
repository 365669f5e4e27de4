// Gradients in an unshard scope: those of a step that goes on, and what becomes of those that are written.
#include <catch2/catch.hpp>

#include <cmath>

#include "runtime/device/step_verifier.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::unshard_scope_gradients_test {
namespace {

using Catch::Contains;
using Arrays = std::vector<std::vector<float>>;

const UnshardOptions kReading = {.writes_back = false, .with_gradients = true}, kWriting = {.with_gradients = true};

void fill(Context& context, const Buffer& out, float value) {
  if (out.elems == 0) return;
  context.launch({"fill", {}, {out}}, [out, value](ExecContext&) { std::fill_n(out.as<float>(), out.elems, value); });
}

std::vector<const Parameter*> parameters_of(ChainRun& run) {
  std::vector<const Parameter*> all;
  for (const FlatParameter& unit : run.runtime.executor().units())
    all.insert(all.end(), unit.parameters.begin(), unit.parameters.end());
  return all;
}

Arrays gradients_in_scope(ChainRun& run) {
  const UnshardScope scope(run.runtime, run.model, kReading);
  run.context.stream().synchronize();
  Arrays all;
  for (const Parameter* parameter : parameters_of(run)) {
    const Buffer grad = scope.gradient(*parameter);
    all.emplace_back(grad.as<float>(), grad.as<float>() + grad.elems);
  }
  return all;
}

void zero_gradients(ChainRun& run) {
  const UnshardScope scope(run.runtime, run.model, kWriting);
  for (const Parameter* parameter : parameters_of(run)) fill(run.context, scope.gradient(*parameter), 0);
}

/// Every scheme that reduces in each micro-batch to the end.
const std::vector<std::string> kReducingEach = {"zero3", "zero2", "hsdp small each", "shard_grad_op each"};

}  // namespace

TEST_CASE("2A-39: between micro-batches gradients are sums that are not divided yet, and what is written is added to") {
  const std::string name = GENERATE(from_range(kReducingEach));
  const Layout layout = GENERATE(Layout::flat, Layout::per_parameter);
  CAPTURE(name, layout);
  struct Seen {
    Arrays in_step, sums, behind, alone;
  };
  const auto ranks = on_ranks(4, [&](World& world) {
    const ShardOptions options{.scheme = scheme_of(name, 4), .layout = {.layout = layout}};
    ShardOptions undivided = options;
    undivided.division = {Division::Rule::none};
    Seen seen;
    ChainRun one(world, undivided);
    one.micro_batch(0);
    seen.sums = gradients_in_scope(one);
    ChainRun other(world, options);
    other.micro_batch(1);
    seen.alone = gradients_in_scope(other);
    ChainRun run(world, options);
    StepVerifier verifier(*run.device);
    run.micro_batch(0, false);
    seen.in_step = gradients_in_scope(run);
    zero_gradients(run);
    run.micro_batch(1, true);
    seen.behind = gradients_in_scope(run);
    run.device->synchronize();
    verifier.check("the step");
    return seen;
  });
  for (const Seen& seen : ranks) {
    CHECK(seen.in_step == seen.sums);
    CHECK(seen.behind == seen.alone);
  }
}

TEST_CASE("2A-39: a frozen parameter has no gradient, those beside it in its unit have theirs") {
  const auto problems = on_ranks(2, [](World& world) {
    ChainRun run(world);
    run.model.layers[1]->bias.set_trainable(false);
    run.micro_batch(0);
    const UnshardScope scope(run.runtime, run.model, kReading);
    std::string problem;
    for (const Parameter* parameter : parameters_of(run))
      if (scope.gradient(*parameter).elems != (parameter->is_trainable() ? parameter->numel() : 0))
        problem += parameter->name() + "; ";
    return problem;
  });
  for (const std::string& problem : problems) CHECK(problem == "");
}

TEST_CASE("2A-42: the norm counts what was written of gradients, also of parameters that ranks hold whole") {
  const std::string name = GENERATE("zero3", "hsdp", "nested", "ddp");
  UnshardOptions options = kWriting;
  if (GENERATE(false, true)) options.only_rank = 1;
  const auto norms = on_ranks(4, [&](World& world) {
    ChainRun run(world,
                 {.scheme = scheme_of(name, 4), .layout = {.layout = Layout::per_parameter, .min_shard_bytes = 100}});
    run.micro_batch(0);
    {
      const UnshardScope scope(run.runtime, run.model, options);
      for (const Parameter* parameter : parameters_of(run))
        fill(run.context, scope.gradient(*parameter), parameter->name() == "layer1.bias" ? 3.0f : 0.0f);
    }
    run.optimizer->step(1e-2f, 1);
    run.device->synchronize();
    return *run.optimizer->grad_norm().as<float>();
  });
  for (const float norm : norms) CHECK(norm == Approx(3 * std::sqrt(static_cast<float>(kChainWidth))));
}

TEST_CASE("2A-42: gradients that ranks write differently, or into a scope for reading, are an error of every rank") {
  const bool is_reading = GENERATE(false, true);
  const auto messages = on_ranks(2, [=](World& world) {
    ChainRun run(world);
    run.micro_batch(0);
    return message_of([&] {
      {
        const UnshardScope scope(run.runtime, {2}, is_reading ? kReading : kWriting);
        if (world.rank() == 1) fill(run.context, scope.gradient(run.model.layers[1]->weight), 5);
      }
      run.device->synchronize();
    });
  });
  for (const std::string& message : messages) {
    if (is_reading) CHECK_THAT(message, Contains("unit layer1 were written to and not written back"));
    if (!is_reading) CHECK_THAT(message, Contains("different values of the gradient of layer1.weight"));
  }
}

}  // namespace zs::test::unshard_scope_gradients_test
