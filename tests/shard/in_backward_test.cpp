// Behind a unit's reduction, within backward: hooks, and updates.
#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>

#include "runtime/device/step_verifier.h"
#include "runtime/shard/optimizers/grad_norm.h"
#include "runtime/shard/optimizers/lion.h"
#include "runtime/shard/optimizers/sgd.h"
#include "runtime/tensor/recompute.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/one_unit.h"
#include "tests/shard/scheme_cases.h"
#include "tests/stderr_of.h"

namespace zs::test::in_backward_test {
namespace {

using Gradients = std::vector<std::vector<float>>;

AdamWConfig config_of(bool in_backward) { return {.clip = 0, .in_backward = in_backward}; }

struct Run {
  Gradients weights;
  std::int64_t updates = 0, grad_bytes = 0;
  std::string order;  // how it was updated
  bool operator==(const Run& other) const { return weights == other.weights && updates == other.updates; }
};

/// Three steps of two micro-batches, the last one of one. `freezes`: layer1's bias; its weight from the second step on.
Run train(World& world, const ShardOptions& options, bool in_backward, bool freezes = false) {
  ShardOptions copied = options;
  copied.zero_copy = false;
  ChainRun run(world, copied);
  StepVerifier verifier(*run.device);
  run.optimizer.reset();
  run.optimizer.emplace(run.runtime.executor(), config_of(in_backward));
  Run result;
  run.runtime.on_reduced([&](int unit) { result.order += fmt::format("{} ", unit); });
  for (int step = 0; step < 3; ++step) {
    if (freezes) run.model.layers[1]->bias.set_trainable(false);
    if (freezes) run.model.layers[1]->weight.set_trainable(step == 0);
    if (in_backward) run.optimizer->begin_step(0.01f);
    run.device->memory().reset_peak();
    if (step < 2) run.micro_batch(2 * step, false);
    run.micro_batch(2 * step + 1, true);
    in_backward ? run.optimizer->end_step() : run.optimizer->step(0.01f);
    run.device->synchronize();
    verifier.check(fmt::format("step {}", step));
    const auto at_peak = run.device->memory().at_peak();
    result.grad_bytes = at_peak.contains("grad_shard") ? at_peak.at("grad_shard") : 0;
  }
  result.updates = run.optimizer->counts().updates(2, 0);
  result.weights = run.weights();
  return result;
}

}  // namespace

TEST_CASE("2A-27: AdamW in backward makes the same weights, with the gradients of two units") {
  const std::string name = GENERATE(from_range(main_schemes()));
  const int ranks = GENERATE(1, 2, 4);
  const bool freezes = GENERATE(false, true);
  CAPTURE(name, ranks, freezes);
  const ShardOptions options{
      .scheme = scheme_of(name, ranks),
      .precision = {.param = ranks == 2 ? DType::bf16 : DType::f32},
      .layout = ranks == 2 ? LayoutOptions{.layout = Layout::per_parameter, .min_shard_bytes = 100} : LayoutOptions{}};
  const auto behind = on_ranks(ranks, [&](World& world) { return train(world, options, false, freezes); });
  const auto within = on_ranks(ranks, [&](World& world) { return train(world, options, true, freezes); });
  for (std::size_t rank = 0; rank < behind.size(); ++rank) {
    CHECK(within[rank] == behind[rank]);
    CHECK(within[rank].order == behind[rank].order);
    CHECK(within[rank].updates == (freezes ? 1 : 3));
    CHECK(within[rank].grad_bytes < behind[rank].grad_bytes);
  }
}

TEST_CASE("hooks come once a step for each unit, in the order of backward") {
  const bool delays = GENERATE(false, true);
  const auto orders = on_ranks(2, [&](World& world) {
    ChainRun run(world, {.schedule = {.delays_reductions = delays}});
    std::string order;
    run.runtime.on_reduced([&](int unit) { order += fmt::format("{} ", unit); });
    for (int step = 0; step < 2; ++step) {
      run.micro_batch(0, false);
      run.micro_batch(1, true);
      order += "| ";
      run.optimizer->step(0.01f);
    }
    return order;
  });
  for (const std::string& order : orders) CHECK(order == "3 2 1 0 | 3 2 1 0 | ");
}

TEST_CASE("2A-27: what does not go with updates in backward is refused by one line") {
  const auto refusal = [](const auto& use, bool zero_copy = false) {
    return message_of([&] {
      on_ranks(2, [&](World& world) {
        ChainRun run(world, {.zero_copy = zero_copy});
        use(run);
        return 0;
      });
    });
  };
  CHECK_THAT(refusal([](ChainRun& run) { AdamW(run.runtime.executor(), {.clip = 1, .in_backward = true}); }),
             Catch::Contains("AdamW in backward with clip = 1"));
  CHECK_THAT(refusal([](ChainRun& run) { Sgd(run.runtime.executor(), {.clip = 0.5f, .in_backward = true}); }),
             Catch::Contains("Sgd in backward with clip = 0.5"));
  const auto in_backward = [](ChainRun& run) {
    run.optimizer.reset();
    run.optimizer.emplace(run.runtime.executor(), config_of(true));
  };
  CHECK_THAT(refusal([&](ChainRun& run) {
               in_backward(run);
               run.micro_batch(0);
             }),
             Catch::Contains("no learning rate") && Catch::Contains("begin_step()"));
  CHECK_THAT(refusal([&](ChainRun& run) {
               in_backward(run);
               run.optimizer->begin_step(0.1f);
               run.micro_batch(0);
               clip_grad_norm(run.runtime.executor(), 1);
             }),
             Catch::Contains("clip_grad_norm() of gradients that an optimizer takes in backward"));
  CHECK_THAT(refusal([&](ChainRun& run) {
               in_backward(run);
               run.optimizer->begin_step(0.1f);
               run.micro_batch(0);
               run.optimizer->step(0.1f);
             }),
             Catch::Contains("step() of AdamW, which updates in backward"));
  CHECK_THAT(refusal([&](ChainRun& run) {
               in_backward(run);
               run.optimizer->begin_step(0.1f);
               run.runtime.abandon_step();
               run.optimizer->begin_step(0.1f);  // once more
               run.optimizer->begin_step(0.1f);
             }),
             Catch::Contains("begin_step() of AdamW twice") && Catch::Contains("end_step()"));
  CHECK_THAT(refusal([](ChainRun& run) { run.optimizer->begin_step(0.1f); }),
             Catch::Contains("begin_step() of AdamW, which updates behind backward"));
  CHECK_THAT(refusal([&](ChainRun& run) {
               in_backward(run);
               run.optimizer->begin_step(0.1f);
               run.runtime.begin_micro_batch(Mode::train, true);
               const Tensor loss = run.model.loss(chain_input(run.context, 0), chain_targets(run.context));
               backward(loss);
               run.runtime.abandon();
             }),
             Catch::Contains("had been updated in backward"));
}

TEST_CASE("2A-27: what needs more than one unit's gradient, or shards of the host, is refused by name") {
  const auto refusal = [](const ShardOptions& options, const auto& use) {
    return message_of([&] {
      on_ranks(2, [&](World& world) {
        ShardOptions own = options;
        own.zero_copy = false;
        ChainRun run(world, own);
        use(run);
        return 0;
      });
    });
  };
  struct Apart : Optimizer {
    explicit Apart(Executor& executor)
        : Optimizer(executor, {.name = "Apart", .is_apart = [](const FlatView&) { return true; }},
                    {.clip = 0, .in_backward = true}) {}
    Update slice_update() const override {
      return [](ExecContext&, const Slice&) {};
    }
  };
  AdamWConfig averaged = config_of(true);
  averaged.average = 0.9f;
  CHECK_THAT(refusal({}, [&](ChainRun& run) { AdamW(run.runtime.executor(), averaged); }),
             Catch::Contains("AdamW in backward with an average") && Catch::Contains("average = 0"));
  CHECK_THAT(refusal({.checks_writes = true}, [](ChainRun& run) { AdamW(run.runtime.executor(), config_of(true)); }),
             Catch::Contains("AdamW in backward") && Catch::Contains("checks_writes"));
  CHECK_THAT(refusal({}, [](ChainRun& run) { Apart(run.runtime.executor()); }),
             Catch::Contains("Apart in backward updates by what ranks exchange"));
  CHECK_THAT(refusal({},
                     [](ChainRun& run) {
                       const AdamW first(run.runtime.executor(), config_of(true));
                       const Sgd second(run.runtime.executor(), {});
                     }),
             Catch::Contains("Sgd of a runtime whose gradients another optimizer takes in backward"));
  for (const Residence& residence : {Residence{.has_masters_on_host = true}, Residence{.has_moments_on_host = true},
                                     Residence{.has_gradients_on_host = true}}) {
    CHECK_THAT(refusal({.precision = {.param = DType::bf16}, .residence = residence},
                       [](ChainRun& run) { AdamW(run.runtime.executor(), config_of(true)); }),
               Catch::Contains("AdamW in backward: the host keeps shards of unit root"));
  }
  CHECK_THAT(refusal({.residence = {.has_gradients_on_host = true}},
                     [](ChainRun& run) {
                       run.runtime.on_reduced([&](int unit) { run.runtime.executor().take_gradient(unit); });
                       run.micro_batch(0);
                     }),
             Catch::Contains("which the host keeps"));
}

TEST_CASE("2A-27: a unit that a recomputed part uses too is updated behind that") {
  struct Tied : Module {
    Tied()
        : Module(""),
          head(add_parameter("head", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true)),
          layer("layer"),
          other("other") {
      add_child(layer);
      add_child(other);
    }
    Tensor loss(const Tensor& x, const Tensor& targets) {
      const ForwardScope scope = enter();
      const Tensor y =
          recompute({layer.forward(x)}, [this](const std::vector<Tensor>& in) { return linear(in[0], head, nullptr); });
      return lm_head_loss(other.forward(y), head, targets, kChainWidth);
    }
    Parameter& head;
    ChainLayer layer, other;
  };
  const auto weights = [](World& world, bool in_backward) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Context context(*device);
    Tied model;
    ShardedRuntime runtime(context, world, {.zero_copy = false});
    shard_module(model, runtime, Units::block);
    AdamW optimizer(runtime.executor(), config_of(in_backward));
    for (int step = 0; step < 2; ++step) {
      if (in_backward) optimizer.begin_step(0.01f);
      runtime.begin_micro_batch(Mode::train, true);
      backward(model.loss(chain_input(context, step), chain_targets(context)));
      runtime.end_micro_batch();
      in_backward ? optimizer.end_step() : optimizer.step(0.01f);
    }
    Gradients all;
    for (int unit = 0; unit < runtime.scheduler().size(); ++unit)
      runtime.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
        all.emplace_back(values, values + parameter.numel());
      });
    return all;
  };
  CHECK(on_ranks(2, [&](World& world) { return weights(world, true); }) ==
        on_ranks(2, [&](World& world) { return weights(world, false); }));
}

TEST_CASE("2A-27: a unit that a step's last micro-batch leaves out is updated by what earlier ones have reduced") {
  const auto weights = [](World& world, bool in_backward) {
    ChainRun run(world, {.zero_copy = false});
    run.optimizer.reset();
    run.optimizer.emplace(run.runtime.executor(), config_of(in_backward));
    for (int step = 0; step < 2; ++step) {
      if (in_backward) run.optimizer->begin_step(0.01f);
      run.micro_batch(step, false);
      run.runtime.begin_micro_batch(Mode::train, true);
      backward([&] {
        const ForwardScope scope(&run.runtime, 0);
        const Tensor y = run.model.layers[2]->forward(linear(chain_input(run.context, 5), run.model.head, nullptr));
        return lm_head_loss(y, run.model.head, chain_targets(run.context), kChainWidth);
      }());
      run.runtime.end_micro_batch();
      in_backward ? run.optimizer->end_step() : run.optimizer->step(0.01f);
    }
    return std::pair(run.weights(), run.optimizer->counts().updates(1, 0));
  };
  const auto within = on_ranks(2, [&](World& world) { return weights(world, true); });
  CHECK(within == on_ranks(2, [&](World& world) { return weights(world, false); }));
  CHECK(within[0].second == 2);
}

TEST_CASE("2A-27: a step that was not ended is named before the next one") {
  const bool begins = GENERATE(false, true);
  const std::string message = message_of([&] {
    on_ranks(2, [&](World& world) {
      ChainRun run(world, {.zero_copy = false});
      run.optimizer.reset();
      run.optimizer.emplace(run.runtime.executor(), config_of(true));
      run.optimizer->begin_step(0.01f);
      run.micro_batch(0);
      if (begins) run.optimizer->begin_step(0.01f);
      run.micro_batch(1);
      return 0;
    });
  });
  CHECK_THAT(message, Catch::Contains(begins ? "begin_step() while" : "a step begins while") &&
                          Catch::Contains("updates in backward have not ended") && Catch::Contains("end_step()"));
}

TEST_CASE("2A-27: a gradient that is not finite is said in one line a rank that holds it") {
  const bool is_finite = GENERATE(true, false);
  const std::string printed = stderr_of([&] {
    on_ranks(2, [&](World& world) {
      ChainRun run(world, {.zero_copy = false});
      run.optimizer.reset();
      run.optimizer.emplace(run.runtime.executor(), config_of(true));
      for (int step = 0; step < 3; ++step) {
        run.optimizer->begin_step(0.01f);
        run.micro_batch(step, true, step == 1 && !is_finite ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
        run.optimizer->end_step();
      }
      run.device->synchronize();
      return run.optimizer->skipped();
    });
  });
  CHECK(std::count(printed.begin(), printed.end(), '\n') == (is_finite ? 0 : 2));
  if (!is_finite) CHECK_THAT(printed, Catch::Contains("AdamW in backward") && Catch::Contains("is not finite"));
}

TEST_CASE("2A-27: an optimizer behind backward follows one in backward") {
  const std::string name = GENERATE(from_range(main_schemes()));
  const auto weights = [&](World& world, bool starts_in_backward) {
    ChainRun run(world, {.scheme = scheme_of(name, 2), .zero_copy = false});
    for (const bool in_backward : {starts_in_backward, false}) {
      run.optimizer.reset();
      run.optimizer.emplace(run.runtime.executor(), config_of(in_backward));
      for (int step = 0; step < 2; ++step) {
        if (in_backward) run.optimizer->begin_step(0.01f);
        run.micro_batch(2 * step, false);
        run.micro_batch(2 * step + 1, true);
        in_backward ? run.optimizer->end_step() : run.optimizer->step(0.01f);
      }
    }
    return run.weights();
  };
  const auto behind = on_ranks(2, [&](World& world) { return weights(world, false); });
  CHECK(on_ranks(2, [&](World& world) { return weights(world, true); }) == behind);
}

TEST_CASE("2A-27: Lion and SGD in backward make the same weights") {
  const bool is_lion = GENERATE(false, true);
  const auto weights = [&](World& world, bool in_backward) {
    ChainRun run(world, {.zero_copy = false});
    run.optimizer.reset();
    std::unique_ptr<Optimizer> own;
    if (is_lion)
      own = std::make_unique<Lion>(run.runtime.executor(), LionConfig{.clip = 0, .in_backward = in_backward});
    else
      own = std::make_unique<Sgd>(run.runtime.executor(), SgdConfig{.momentum = 0.9f, .in_backward = in_backward});
    for (int step = 0; step < 3; ++step) {
      if (in_backward) own->begin_step(0.01f);
      run.micro_batch(step);
      in_backward ? own->end_step() : own->step(0.01f);
    }
    return run.weights();
  };
  CHECK(on_ranks(2, [&](World& world) { return weights(world, true); }) ==
        on_ranks(2, [&](World& world) { return weights(world, false); }));
}

TEST_CASE("2A-27: updates in backward are refused where ranks read each other's weights") {
  CHECK_THAT(message_of([] {
               on_ranks(2, [](World& world) {
                 OneUnit unit(world);
                 AdamW(unit.executor(), config_of(true));
                 return 0;
               });
             }),
             Catch::Contains("AdamW in backward") && Catch::Contains("zero_copy = false"));
}

}  // namespace zs::test::in_backward_test
