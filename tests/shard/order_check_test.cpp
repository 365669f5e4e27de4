// Ranks that do not communicate alike are stopped before the optimizer's step, and are told where they part.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "runtime/shard/optimizers/sgd.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::order_check_test {
namespace {

struct Outcome {
  int steps_done = 0;
  std::string message;  // of the OrderMismatch, explained
  int code = 0;
  bool is_untouched = false;  // the weights are those before the step that was stopped
};

/// Three steps; before the end of step `wrong_step` rank `wrong_rank` believes that it has done `extra` too.
Outcome run(World& world, int wrong_step, int wrong_rank, const Action& extra, Mode mode = Mode::train,
            const ShardOptions& options = {}) {
  ChainRun run(world, options);
  Outcome outcome;
  std::vector<std::vector<float>> before;
  try {
    for (int step = 1; step <= 3; ++step) {
      before = run.weights();
      run.micro_batch(2 * step, false);
      if (step == wrong_step && world.rank() == wrong_rank) run.runtime.order_check().note({extra}, mode);
      run.runtime.begin_micro_batch(Mode::train, true);
      backward(run.model.loss(chain_input(run.context, 2 * step + 1), chain_targets(run.context)));
      run.runtime.end_micro_batch();
      run.optimizer->step(1e-2f, step);
      run.device->synchronize();
      ++outcome.steps_done;
    }
  } catch (const OrderMismatch& mismatch) {
    try {
      throw mismatch;
    } catch (const OrderMismatch& explained) {
      outcome.message = explained.what();
      outcome.code = static_cast<int>(explained.code());
    }
    outcome.is_untouched = run.weights() == before;
  }
  return outcome;
}

std::string message_of_world(int ranks, const std::function<void(World&)>& body) {
  try {
    run_local_world(ranks, {.timeout_s = 60}, body);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::ranks_disagree);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE(
    "I5: a rank that communicates otherwise stops all ranks before the optimizer's step, with both ranks' operations") {
  const int wrong_step = GENERATE(1, 3), wrong_rank = GENERATE(0, 2);
  CAPTURE(wrong_step, wrong_rank);
  const auto outcomes = on_ranks(3, [&](World& world) {
    return run(world, wrong_step, wrong_rank, {Action::Kind::reduce, 2});
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.steps_done == wrong_step - 1);
    CHECK(outcome.code == static_cast<int>(ExitCode::ranks_disagree));
    CHECK(outcome.is_untouched);
    CHECK(outcome.message == outcomes[0].message);
    CHECK_THAT(outcome.message,
               Catch::Contains(
                   fmt::format("the ranks disagree on the order of communication in step {}, operation ", wrong_step)));
    CHECK_THAT(outcome.message, Catch::Contains(fmt::format("rank {} reduce(layer1)", wrong_rank)));
    CHECK_THAT(outcome.message, Catch::Contains(wrong_rank == 0 ? ", rank 1 " : "rank 0 "));
  }
}

TEST_CASE("I5: ranks in step are not stopped, and compare with one small all-reduce a step") {
  const auto counts = on_ranks(2, [](World& world) {
    ChainRun run(world);
    run.device->trace().start();
    for (int step = 1; step <= 3; ++step) {
      run.micro_batch(3 * step, false);
      run.micro_batch(3 * step + 1);
      run.optimizer->step(1e-2f, step);
      const NoGradGuard no_grad(run.context);  // a validation is an order of its own
      run.runtime.begin_micro_batch(Mode::eval, true);
      run.model.loss(chain_input(run.context, step), chain_targets(run.context));
      run.runtime.end_micro_batch();
    }
    run.device->synchronize();
    const auto& entries = run.device->trace().entries();
    return std::pair(std::count_if(entries.begin(), entries.end(),
                                   [](const TraceEntry& e) { return e.op.name == "all_reduce:order"; }),
                     run.runtime.scheduler().take_deviations().size());
  });
  for (const auto& [compared, deviations] : counts) {
    CHECK(compared == 3);
    CHECK(deviations == 0);
  }
}

TEST_CASE("I5: a validation that only some ranks run is noticed at the next step") {
  const auto outcomes = on_ranks(2, [&](World& world) {
    return run(world, 2, 1, {Action::Kind::gather, 3}, Mode::eval);
  });
  CHECK_THAT(outcomes[0].message, Catch::Contains("rank 1 gather(layer2) f32 in a validation"));
}

TEST_CASE(
    "I5: ranks whose layers run in another order are stopped at the first message, equal sizes or not, with both "
    "names") {
  const bool zero_copy = GENERATE(false, true);
  const std::string message = message_of_world(2, [&](World& world) {
    ChainRun run(world, {.zero_copy = zero_copy});
    run.runtime.begin_micro_batch(Mode::train, true);
    const ForwardScope scope(&run.runtime, 0);
    Tensor y = linear(chain_input(run.context, 0), run.model.head, nullptr);
    for (const std::size_t i :
         world.rank() == 0 ? std::vector<std::size_t>{0, 1, 2} : std::vector<std::size_t>{1, 0, 2})
      y = run.model.layers[i]->forward(y);
    run.device->synchronize();
  });
  const std::string op = zero_copy ? "publish" : "all_gather";
  CHECK_THAT(message, Catch::Contains(fmt::format("rank 0 {}(layer0)", op)) &&
                          Catch::Contains(fmt::format("rank 1 {}(layer1)", op)));
}

TEST_CASE(
    "I5: groups whose units differ, each of one mind, are stopped before the optimizer's step, with the first "
    "difference") {
  struct Difference {
    void (*make)(ShardOptions& options);
    const char* text;
    Layout layout = Layout::flat;
  };
  const Difference difference = GENERATE(
      Difference{[](ShardOptions& o) { o.precision.param = DType::bf16; }, "parameters: rank 0 f32, rank 2 bf16"},
      Difference{[](ShardOptions& o) { o.precision = {.param = DType::bf16, .reduce = DType::bf16}; },
                 "parameters: rank 0 f32, rank 2 bf16"},
      Difference{[](ShardOptions& o) { o.precision.is_full_in_evaluation = true; },
                 "validation: rank 0 as in training, rank 2 f32"},
      Difference{[](ShardOptions& o) { o.precision.gather_format = int8_format(); },
                 "gathers travel: rank 0 exact, rank 2 int8"},
      Difference{[](ShardOptions& o) { o.precision.reduce_comm_dtype = CommDType::int8; },
                 "gradients travel: rank 0 exact, rank 2 int8"},
      Difference{
          [](ShardOptions& o) { o.layout.dim = [](std::string_view, const Shape& shape) { return shape.rank() - 1; }; },
          "where they are cut: rank 2 differs from rank 0", Layout::per_parameter});
  CAPTURE(difference.text);
  const auto outcomes = on_ranks(4, [&](World& world) {
    ShardOptions options{.scheme = {.strategy = Strategy::hsdp, .group_size = 2},
                         .layout = {.layout = difference.layout}};
    if (world.rank() >= 2) difference.make(options);
    return run(world, 0, 0, {}, Mode::train, options);
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.steps_done == 0);
    CHECK(outcome.code == static_cast<int>(ExitCode::ranks_disagree));
    CHECK(outcome.message == outcomes[0].message);
    CHECK_THAT(outcome.message, Catch::Contains("in step 1, unit root, ") && Catch::Contains(difference.text));
  }
}

TEST_CASE(
    "I5: ranks or groups that train otherwise are stopped before the optimizer's step, with the setting and both "
    "values") {
  struct Difference {
    const char* text;
    void (*options)(ShardOptions& options) = [](ShardOptions&) {};
    void (*run)(ChainRun& run) = [](ChainRun&) {};
    float lr = 1e-2f;
    std::int64_t step = 1;
  };
  const Difference difference = GENERATE(
      Difference{"the seed of the initial weights in step 1: rank 0 has 0, rank 2 has 8",
                 [](ShardOptions& o) { o.seed = 8; }},
      Difference{"the division of gradients in step 1: rank 0 has 1 before and 4 after the sum, rank 2 has 1 before "
                 "and 1 after the sum",
                 [](ShardOptions& o) { o.division.rule = Division::Rule::none; }},
      Difference{"the learning rate in step 1: rank 0 has 0.01, rank 2 has 0.02", [](ShardOptions&) {},
                 [](ChainRun&) {}, 2e-2f},
      Difference{"the number of the step in step 1: rank 0 has 1, rank 2 has 2", [](ShardOptions&) {}, [](ChainRun&) {},
                 1e-2f, 2},
      Difference{
          "the weight decay in step 1: rank 0 has 0.1, rank 2 has 0.5", [](ShardOptions&) {},
          [](ChainRun& run) { run.optimizer.emplace(run.runtime.executor(), AdamWConfig{.weight_decay = 0.5f}); }},
      Difference{"AdamW's beta2 in step 1: rank 0 has 0.95, rank 2 has 0.99", [](ShardOptions&) {},
                 [](ChainRun& run) { run.optimizer.emplace(run.runtime.executor(), AdamWConfig{.beta2 = 0.99f}); }},
      Difference{"the largest norm of the gradient (clip) in step 1: rank 0 has 1, rank 2 has 0", [](ShardOptions&) {},
                 [](ChainRun& run) { run.optimizer.emplace(run.runtime.executor(), AdamWConfig{.clip = 0}); }},
      Difference{"whether parameter layer1.bias is trained in step 1: rank 0 trains it, rank 2 has it frozen",
                 [](ShardOptions&) {}, [](ChainRun& run) { run.model.layers[1]->bias.set_trainable(false); }});
  const SchemeOptions scheme =
      GENERATE(SchemeOptions{.strategy = Strategy::ddp}, SchemeOptions{.strategy = Strategy::zero3},
               SchemeOptions{.strategy = Strategy::hsdp, .group_size = 2});
  CAPTURE(difference.text, name_of(scheme.strategy));
  const auto outcomes = on_ranks(4, [&](World& world) {
    ShardOptions options{.scheme = scheme};
    const bool is_other = world.rank() >= 2;
    if (is_other) difference.options(options);
    ChainRun run(world, options);
    if (is_other) difference.run(run);
    const auto before = run.weights();
    Outcome outcome;
    try {
      run.micro_batch(1);
      run.optimizer->step(is_other ? difference.lr : 1e-2f, is_other ? difference.step : 1);
      run.device->synchronize();
    } catch (const OrderMismatch& mismatch) {
      outcome = {.message = mismatch.what(),
                 .code = static_cast<int>(mismatch.code()),
                 .is_untouched = run.weights() == before};
    }
    return outcome;
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.code == static_cast<int>(ExitCode::ranks_disagree));
    CHECK(outcome.is_untouched);
    CHECK_THAT(outcome.message, Catch::Contains("the ranks disagree on ") && Catch::Contains(difference.text));
  }
}

TEST_CASE("I5: ranks of different models are told the unit and its parameters") {
  const std::string message = message_of_world(2, [](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .memory = world.arena()});
    Context context(*device);
    Parameter weight("layer0.weight", {world.rank() == 0 ? 48 : 64, 16}, {.normal_std = 1}, true);
    ShardedRuntime runtime(context, world, {});
    runtime.add_unit("layer0", {&weight});
  });
  CHECK_THAT(message,
             Catch::Contains("shares a window of ") && Catch::Contains("unit layer0, on this rank of layer0.weight ("));
}

TEST_CASE("I5: weights that one group alone has written back are noticed, at the latest before the optimizer's step") {
  using After = UnshardOptions::After;
  const std::string message = message_of_world(4, [](World& world) {
    ChainRun run(world, {.scheme = {.strategy = Strategy::hsdp, .group_size = 2}, .zero_copy = false});
    // An exception ends the scope of half of the ranks, which then store what the others do not, and nobody looks at it
    // there.
    message_of([&] {
      const UnshardScope scope(run.runtime, {1},
                               {.after_exception = world.rank() < 2 ? After::discard : After::write_back});
      throw Error(ExitCode::io, "ends the scope");
    });
    run.micro_batch(0);
    run.optimizer->step(1e-2f, 1);
    run.device->synchronize();
  });
  CHECK_THAT(message, Catch::Contains("rank 2 write_back(layer0)"));
}

TEST_CASE("I5: what broadcast_parameters gives every rank is the weights and the seed of its root, in every scheme") {
  const auto expected = on_ranks(1, [](World& world) { return ChainRun(world, {.seed = 3}).weights(); })[0];
  for (const std::string& name : scheme_names()) {
    CAPTURE(name);
    const auto results = on_ranks(4, [&](World& world) {
      const std::uint64_t seed = world.rank() == 2 ? 3 : 100 + static_cast<std::uint64_t>(world.rank());
      ChainRun run(world, {.scheme = scheme_of(name, 4), .seed = seed});
      broadcast_parameters(run.runtime, 2);
      const auto weights = run.weights();
      run.micro_batch(0);
      run.optimizer->step(1e-2f, 1);
      run.device->synchronize();
      return weights;
    });
    for (const auto& weights : results) CHECK((weights == expected));
  }
}

TEST_CASE("2A-8: broadcast_parameters gives every rank its root's ignored parameters, too") {
  const auto tails = on_ranks(3, [](World& world) {
    std::vector<float> tail(kChainWidth * kChainWidth, static_cast<float>(world.rank()));
    ChainRun run(world, {}, [&](Chain& chain, ShardedRuntime& runtime) {
      chain.head.bind({tail.data(), std::ssize(tail), DType::f32, DeviceKind::cpu});
      shard_module(chain, runtime, Units::block, [&](const Parameter& parameter) { return &parameter == &chain.head; });
    });
    broadcast_parameters(run.runtime, 2);
    run.device->synchronize();
    run.model.head.unbind();
    return tail;
  });
  for (const auto& tail : tails) CHECK(tail == std::vector<float>(kChainWidth * kChainWidth, 2));
}

TEST_CASE("I5: replicas that do not begin alike, or are not given the same, are found before the first update") {
  struct Part {
    const char* text;
    std::function<void(Parameter&)> change;
    bool decays = true;
  };
  const std::vector<Part> parts = {
      {"initial values and decay", [](Parameter& weight) { weight.set_init({.normal_std = 0.25f}); }},
      {"initial values and decay", [](Parameter&) {}, false},
      {"the same weights of unit layer0", [](Parameter& weight) {
         weight.set_init({.function = [random = std::mt19937(7)](std::int64_t) mutable {
           return static_cast<float>(random() % 7);
         }});
       }}};
  for (const Part& part : parts) {
    for (const std::string scheme : {"ddp", "hsdp"}) {
      CAPTURE(part.text, scheme);
      const std::string message = message_of_world(4, [&](World& world) {
        const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
        Context context(*device);
        const bool is_odd = world.rank() == 3, is_random = std::string(part.text).starts_with("the same");
        Parameter weight("layer0.weight", {8, 8}, {.normal_std = 1}, !is_odd || part.decays);
        if (is_odd || is_random) part.change(weight);
        if (is_odd && is_random) weight.set_init({.function = [](std::int64_t i) { return static_cast<float>(i); }});
        ShardedRuntime runtime(context, world, in_tests({.scheme = scheme_of(scheme, 4)}));
        runtime.add_unit("layer0", {&weight});
        AdamW optimizer(runtime.executor(), {});
        runtime.begin_micro_batch(Mode::train, true);
        {
          const ForwardScope scope(&runtime, 0);
          backward(sum(linear(Tensor::zeros(context, {2, 8}, DType::f32), weight, nullptr)));
        }
        runtime.end_micro_batch();
        optimizer.step(0.1f);
        device->synchronize();
      });
      CHECK_THAT(message, Catch::Contains(part.text));
    }
  }
}

TEST_CASE("I5: groups of parameters that one rank alone has are named as such, and so is another optimizer") {
  for (const bool is_sgd : {false, true}) {
    const std::string message = message_of_world(2, [&](World& world) {
      ChainRun run(world);
      run.optimizer.reset();
      std::unique_ptr<Optimizer> own;
      if (world.rank() == 1 && is_sgd) own = std::make_unique<Sgd>(run.runtime.executor(), SgdConfig{});
      AdamWConfig config;
      if (world.rank() == 1) config.groups = {{"layer1.*", 3}};
      if (!own) own = std::make_unique<AdamW>(run.runtime.executor(), config);
      run.micro_batch(0);
      own->step(0.1f);
      run.device->synchronize();
    });
    CHECK_THAT(message, Catch::Contains(is_sgd ? "disagree on the optimizer in step 1: rank 0 has AdamW, rank 1 has Sgd"
                                               : "disagree on the groups of parameters in step 1: rank 0 has nothing"));
  }
}

TEST_CASE("I5: an abandoned micro-batch is not compared") {
  const auto done = on_ranks(2, [](World& world) {
    ChainRun run(world);
    run.runtime.begin_micro_batch(Mode::train, true);
    { const ForwardScope scope(&run.runtime, 0); }
    run.runtime.abandon();
    run.micro_batch(0);
    run.optimizer->step(1e-2f, 1);
    run.device->synchronize();
    return true;
  });
  CHECK(done == std::vector<bool>{true, true});
}

}  // namespace zs::test::order_check_test
