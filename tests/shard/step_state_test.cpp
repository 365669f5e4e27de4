// What may come where in a step: calls at a wrong place are refused by name, and nothing is lost silently.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "runtime/base/usage_error.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"
#include "tests/stderr_of.h"

namespace zs::test::step_state_test {
namespace {

using Catch::Contains;
using Arrays = std::vector<std::vector<float>>;
constexpr int kRanks = 4;

/// What the UsageError says that `body` throws; "other error: ..." of any other.
template <class Body>
std::string refusal_of(const Body& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("other error: ") + error.what();
  }
  return "accepted";
}

/// Enters the units of a micro-batch as far as `layers` layers, and goes no further.
void enter(ChainRun& run, std::size_t layers, bool is_last) {
  run.runtime.begin_micro_batch(Mode::train, is_last);
  const ForwardScope scope(&run.runtime, 0);
  Tensor y = linear(chain_input(run.context, 1), run.model.head, nullptr);
  for (std::size_t i = 0; i < layers; ++i) y = run.model.layers[i]->forward(y);
}

/// The gradients of a step of three micro-batches, of which the second and third are begun twice where `abandons`.
Arrays gradients_of_step(World& world, const std::string& name, bool abandons, bool no_sync) {
  ChainRun run(world, {.scheme = scheme_of(name, kRanks), .schedule = {.delays_reductions = name.size() % 2 == 0}});
  for (int i = 0; i < 3; ++i) {
    std::optional<NoSync> guard;
    if (no_sync && i == 0) guard.emplace(run.runtime);
    if (abandons && i > 0) {
      // As far as the loss, which computes a gradient of the root's, where that is not added to what earlier ones have
      // left whole.
      const bool has_loss = i == 2 && run.runtime.executor().scheme().options().reduce_every_micro_batch;
      if (has_loss) {
        run.runtime.begin_micro_batch(Mode::train, true);
        run.model.loss(chain_input(run.context, 7), chain_targets(run.context));
      } else {
        enter(run, static_cast<std::size_t>(i), i == 2);
      }
      run.runtime.abandon();
    }
    run.micro_batch(i, i == 2);
  }
  run.runtime.executor().wait_reductions();
  return run.gradients();
}

}  // namespace

TEST_CASE("a micro-batch that is abandoned in its forward leaves the sums of the earlier ones, in every scheme") {
  for (const std::string& name : scheme_names()) {
    for (const bool no_sync : {false, true}) {
      CAPTURE(name, no_sync);
      const auto expected =
          on_ranks(kRanks, [&](World& world) { return gradients_of_step(world, name, false, no_sync); });
      const auto found = on_ranks(kRanks, [&](World& world) { return gradients_of_step(world, name, true, no_sync); });
      for (std::size_t rank = 0; rank < kRanks; ++rank) CHECK((found[rank] == expected[rank]));
    }
  }
}

TEST_CASE(
    "a micro-batch that is abandoned in its backward is dropped alone where it is the first, else with its step, by an "
    "error") {
  for (const std::string& name : scheme_names()) {
    CAPTURE(name);
    const auto results = on_ranks(kRanks, [&](World& world) {
      ChainRun run(world, {.scheme = scheme_of(name, kRanks)});
      const auto stop_in_backward = [&](bool is_last) {
        run.runtime.begin_micro_batch(Mode::train, is_last);
        const Tensor loss = run.model.loss(chain_input(run.context, 5), chain_targets(run.context));
        backward(loss);  // all of it, which is reduced where the scheme does so, and the micro-batch does not end
        return refusal_of([&] { run.runtime.abandon(); });
      };
      std::vector<std::string> said{stop_in_backward(false)};
      run.micro_batch(0, false);
      said.push_back(stop_in_backward(true));
      run.micro_batch(0, false);
      run.micro_batch(1);
      run.runtime.executor().wait_reductions();
      return std::pair(said, run.gradients());
    });
    const auto expected = on_ranks(kRanks, [&](World& world) {
      ChainRun run(world, {.scheme = scheme_of(name, kRanks)});
      run.micro_batch(0, false);
      run.micro_batch(1);
      run.runtime.executor().wait_reductions();
      return run.gradients();
    });
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      CHECK(results[rank].first[0] == "accepted");
      CHECK_THAT(results[rank].first[1], Contains("beside those of earlier micro-batches") &&
                                             Contains("all gradients of the step are dropped"));
      CHECK((results[rank].second == expected[rank]));
    }
  }
}

TEST_CASE(
    "while an UnshardScope lives, what would use or free its unit is refused with the unit's name, in every scheme") {
  const TempDir temp;
  for (const std::string& name : scheme_names()) {
    CAPTURE(name);
    const auto results = on_ranks(kRanks, [&](World& world) {
      ChainRun run(world, {.scheme = scheme_of(name, kRanks),
                           .precision = {.param = name == "zero3" ? DType::bf16 : DType::f32}});
      const Arrays before = run.weights();
      run.micro_batch(0);
      std::vector<std::string> said;
      {
        const UnshardScope scope(run.runtime, {2}, {.writes_back = false});
        const TrainingState state{world, run.runtime.executor(), *run.optimizer};
        said = {refusal_of([&] { run.runtime.begin_micro_batch(Mode::train, true); }),
                refusal_of([&] { run.runtime.begin_micro_batch(Mode::eval, true); }),
                refusal_of([&] { run.runtime.before_forward(2); }),
                refusal_of([&] { run.runtime.after_forward(2); }),
                refusal_of([&] { run.runtime.unshard(2); }),
                refusal_of([&] { run.runtime.reshard(2); }),
                refusal_of([&] { run.runtime.pregather(); }),
                refusal_of([&] { run.runtime.abandon(); }),
                refusal_of([&] { run.runtime.abandon_step(); }),
                refusal_of([&] { run.runtime.executor().masters_updated(); }),
                refusal_of([&] { run.optimizer->step(1e-2f, 1); }),
                refusal_of([&] { load(state, temp.path()); }),
                refusal_of([&] { save(state, temp.path(), {}); }),
                refusal_of([&] { broadcast_parameters(run.runtime); }),
                refusal_of([&] { const UnshardScope second(run.runtime, {2}); }),
                refusal_of([&] {
                  const UnshardScope second(run.runtime, {1, 2});
                })};
      }
      run.device->synchronize();
      const bool is_as_before = run.weights() == before;
      run.optimizer->step(1e-2f, 1);  // all is as it was
      run.micro_batch(1);
      run.optimizer->step(1e-2f, 2);
      run.device->synchronize();
      return std::pair(said, is_as_before);
    });
    for (const auto& [said, is_as_before] : results) {
      for (const std::string& refusal : said) CHECK_THAT(refusal, Contains("layer1") && Contains("UnshardScope"));
      CHECK(is_as_before);
    }
  }
}

TEST_CASE("a checkpoint is not saved or loaded where gradients wait for the optimizer, in every scheme") {
  const TempDir temp;
  for (const std::string& name : scheme_names()) {
    CAPTURE(name);
    const auto results = on_ranks(kRanks, [&](World& world) {
      ChainRun run(world, {.scheme = scheme_of(name, kRanks)});
      const TrainingState state{world, run.runtime.executor(), *run.optimizer};
      const auto both = [&] {
        return refusal_of([&] { save(state, temp.path(), {.step = 1, .attributes = {}}); }) + "; " +
               refusal_of([&] { load(state, temp.path()); });
      };
      std::vector<std::string> said;
      run.micro_batch(0, false);
      said.push_back(both());
      run.micro_batch(1);
      said.push_back(both());
      run.optimizer->step(1e-2f, 1);
      {
        const NoSync guard(run.runtime);
        run.micro_batch(2, true);
      }
      said.push_back(both());
      said.push_back(refusal_of([&] { run.optimizer->step(1e-2f, 2); }));
      run.runtime.abandon_step();
      run.runtime.begin_micro_batch(Mode::eval, true);
      said.push_back(both());
      run.runtime.end_micro_batch();
      return said;
    });
    for (const auto& said : results) {
      for (const std::size_t i : {0, 1, 2})
        CHECK_THAT(said[i], Contains("save() in the middle of a step") && Contains("load() in the middle of a step"));
      CHECK_THAT(said[3], Contains("accumulated under NoSync"));
      CHECK_THAT(said[4], Contains("save() within an evaluation"));
    }
  }
}

TEST_CASE("an optimizer's step at a wrong place is an error that says what was forgotten, on one rank as on two") {
  for (const int ranks : {1, 2}) {
    const auto results = on_ranks(ranks, [](World& world) {
      ChainRun run(world);
      const Arrays before = run.weights();
      const auto step = [&](float lr = 1e-2f, std::int64_t number = 1) {
        return refusal_of([&] { run.optimizer->step(lr, number); });
      };
      std::vector<std::string> said{step()};
      run.runtime.begin_micro_batch(Mode::train, true);
      said.push_back(step());
      run.runtime.end_micro_batch();
      said.push_back(step());  // no backward
      run.runtime.abandon_step();
      run.micro_batch(0, false);
      said.push_back(step());
      run.runtime.begin_micro_batch(Mode::eval, false);
      said.push_back(step());
      run.runtime.end_micro_batch();
      run.micro_batch(1, true);
      said.push_back(step(1e-2f, 0));
      said.push_back(step(std::numeric_limits<float>::quiet_NaN()));
      const bool is_untouched = run.weights() == before;
      said.push_back(step());
      said.push_back(step());
      return std::pair(said, is_untouched && run.weights() != before);
    });
    for (const auto& [said, is_right] : results) {
      const char* const expected[] = {"nothing to do",
                                      "within a micro-batch",
                                      "no parameter took part in a backward",
                                      "1 ended, none of them",
                                      "within an evaluation",
                                      "has the number 0",
                                      "learning rate is nan",
                                      "accepted",
                                      "nothing to do"};
      for (std::size_t i = 0; i < said.size(); ++i) CHECK_THAT(said[i], Contains(expected[i]));
      CHECK(is_right);
    }
  }
}

TEST_CASE("a step may not begin while sums of the last one that have a second step of their own are not taken") {
  for (const std::string name : {"zero3", "ddp", "zero2", "hsdp", "nested"}) {
    INFO(name);
    const auto results = on_ranks(kRanks, [&](World& world) {
      ChainRun run(world, {.scheme = scheme_of(name, kRanks)});
      std::vector<std::string> said;
      run.micro_batch(0, true);
      said.push_back(refusal_of([&] { run.micro_batch(1, true); }));
      run.runtime.abandon_step();
      run.micro_batch(0, true);
      run.optimizer->step(1e-2f, 1);
      said.push_back(refusal_of([&] { run.micro_batch(1, true); }));
      const Placement& placement = *run.runtime.executor().units().front().placement;
      return std::pair(said, placement.second == Placement::SecondStep::none);
    });
    for (const auto& [said, has_no_second_step] : results) {
      CHECK_THAT(said[0], Contains(has_no_second_step ? "accepted" : "no optimizer has taken the gradients"));
      CHECK(said[1] == "accepted");
    }
  }
}

TEST_CASE("a micro-batch that is open when its runtime ends is named") {
  const std::string said = stderr_of([] {
    const auto world = make_single_world({.timeout_s = 60});
    ChainRun run(*world);
    run.runtime.begin_micro_batch(Mode::eval, true);
  });
  CHECK_THAT(said, Contains("an evaluation was still open") && Contains("end_micro_batch()"));
}

TEST_CASE(
    "0-37: a step of which one element, one rank or all are not finite is skipped by all ranks, counted, and said "
    "once") {
  const std::string name = GENERATE("zero3", "hsdp", "nested", "ddp");
  CAPTURE(name);
  std::vector<std::int64_t> counts;
  const std::string said = stderr_of([&] {
    counts = on_ranks(kRanks, [&](World& world) {
      ChainRun run(world, {.scheme = scheme_of(name, kRanks)});
      for (int step = 1; step <= 4; ++step) {
        const Arrays before = run.weights();
        const bool is_finite = step % 2 == 0 || (step == 3 && world.rank() != 2);
        run.micro_batch(step, true, is_finite ? 1.0f : std::numeric_limits<float>::infinity());
        if (step == 4) {  // in one rank's part of what is sharded
          const UnshardScope scope(run.runtime, {1}, {.with_gradients = true});
          const Buffer first = scope.gradient(run.model.layers[0]->weight).slice(0, 1);
          run.context.launch({"spoil", {}, {first}},
                             [first](ExecContext&) { *first.as<float>() = std::numeric_limits<float>::infinity(); });
        }
        run.optimizer->step(1e-2f, step);
        if ((run.weights() == before) != (step != 2)) return std::int64_t{-1};
      }
      return run.optimizer->skipped();
    });
  });
  CHECK(counts == std::vector<std::int64_t>(kRanks, 3));
  CHECK_THAT(said, Contains("an optimizer's step was skipped"));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

TEST_CASE(
    "a parameter that begins to train late is corrected for its own updates, and a checkpoint keeps their number") {
  const TempDir temp;
  const AdamWConfig config{.beta2 = 0.999f, .weight_decay = 0, .clip = 0};
  const auto moved = on_ranks(2, [&](World& world) {
    constexpr std::size_t kBias1 = 4;  // of head, layer0.weight, layer0.bias, layer1.weight ...
    const auto make = [&](std::optional<ChainRun>& run) {
      run.emplace(world);
      run->optimizer.emplace(run->runtime.executor(), config);
    };
    const auto step = [](ChainRun& run, int number) {
      const auto before = run.weights()[kBias1];
      run.micro_batch(0);
      run.optimizer->step(1e-3f, number);
      const auto after = run.weights()[kBias1];
      std::vector<double> moved;
      for (std::size_t i = 0; i < before.size(); ++i)
        moved.push_back(std::abs(static_cast<double>(after[i]) - static_cast<double>(before[i])));
      return moved;
    };
    std::optional<ChainRun> run, resumed;
    make(run);
    run->model.layers[1]->bias.set_trainable(false);
    for (int number = 1; number <= 20; ++number) step(*run, number);
    run->model.layers[1]->bias.set_trainable(true);
    std::vector<std::vector<double>> moves{step(*run, 21), step(*run, 22)};
    save({world, run->runtime.executor(), *run->optimizer}, temp.path(), {.step = 22, .attributes = {{"a", "b"}}});
    make(resumed);
    const auto info = load({world, resumed->runtime.executor(), *resumed->optimizer}, temp.path() + "/step-22");
    moves.push_back(step(*run, 23));
    moves.push_back(step(*resumed, 1));  // whatever number it is given
    const bool has_own_attributes = info.attributes == std::map<std::string, std::string>{{"a", "b"}};
    return std::tuple(moves, run->weights() == resumed->weights(), has_own_attributes);
  });
  for (const auto& [moves, is_same, has_own_attributes] : moved) {
    // The first update is the learning rate whatever the gradient; the second is of almost the same gradient.
    for (const double move : moves[0]) CHECK(move == Approx(1e-3).epsilon(1e-2));
    for (const double move : moves[1]) CHECK(move == Approx(1e-3).epsilon(0.1));
    CHECK(moves[2] == moves[3]);
    CHECK(is_same);
    CHECK(has_own_attributes);
  }
}

}  // namespace zs::test::step_state_test
