// Parameters that are not trained: frozen ones, which are sharded all the same, and ignored ones, which are not.
#include <catch2/catch.hpp>

#include <cmath>
#include <map>
#include <set>

#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/held_state.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/tensor/plain_owner.h"

namespace zs::test::frozen_test {
namespace {

using Kind = Action::Kind;
using Arrays = std::vector<std::vector<float>>;

constexpr int kLayer1 = 2;  // its unit

struct Outcome {
  Arrays gradients, before, after;  // of the first step; weights
  double norm = 0;
  std::ptrdiff_t gathers = 0, frees = 0, begins = 0, reduces = 0;  // of layer1, in a replayed micro-batch
};

/// Two steps of a chain in which `freeze` has frozen what it likes.
template <class Freeze>
std::vector<Outcome> train(int ranks, const Freeze& freeze, const PrefetchOptions& schedule = {}) {
  return on_ranks(ranks, [&](World& world) {
    ChainRun run(world, {.schedule = schedule, .seed = 3, .division = {Division::Rule::none}});
    freeze(run.model);
    Outcome outcome;
    outcome.before = run.weights();
    for (int step = 1; step <= 2; ++step) {
      run.micro_batch(step);
      if (step == 1) outcome.gradients = run.gradients();
      run.optimizer->step(1e-2f, step);
      run.device->synchronize();
      if (step == 1) outcome.norm = static_cast<double>(*run.optimizer->grad_norm().as<float>());
    }
    outcome.gathers = run.count(Kind::gather, kLayer1);
    outcome.frees = run.count(Kind::free_full, kLayer1);
    outcome.begins = run.count(Kind::begin_gradient, kLayer1);
    outcome.reduces = run.count(Kind::reduce, kLayer1);
    outcome.after = run.weights();
    return outcome;
  });
}

/// Weights are listed as head, layer0.weight, layer0.bias, layer1.weight ...
constexpr std::size_t kWeight1 = 3, kBias1 = 4;

}  // namespace

TEST_CASE(
    "a frozen unit is gathered and freed in backward, and neither reduced nor updated; the others do not notice") {
  const int ranks = GENERATE(1, 2);
  const PrefetchOptions schedule{.prefetch = GENERATE(0, 1), .reduces_unused = GENERATE(false, true)};
  const auto trained = train(
      ranks, [](Chain&) {}, schedule);
  const auto frozen = train(
      ranks,
      [](Chain& chain) {
        chain.layers[1]->weight.set_trainable(false);
        chain.layers[1]->bias.set_trainable(false);
      },
      schedule);
  for (std::size_t rank = 0; rank < frozen.size(); ++rank) {
    const Outcome &with = frozen[rank], &without = trained[rank];
    CHECK(with.gathers == 2);
    CHECK(with.frees == 2);
    CHECK(with.begins == 0);
    CHECK(with.reduces == 0);
    for (const std::size_t unit : {0, 1, 3}) CHECK(with.gradients[unit] == without.gradients[unit]);
    CHECK(with.after[kWeight1] == with.before[kWeight1]);
    CHECK(with.after[kBias1] == with.before[kBias1]);
    CHECK(with.after[1] != with.before[1]);
  }
}

TEST_CASE("in a unit of both, the frozen parameters keep their bits and the norm is that of the trained ones") {
  const int ranks = GENERATE(1, 2, 3);
  const auto trained = train(ranks, [](Chain&) {});
  const auto mixed = train(ranks, [](Chain& chain) { chain.layers[1]->weight.set_trainable(false); });
  double squares = 0;
  for (std::size_t rank = 0; rank < mixed.size(); ++rank) {
    const Outcome &with = mixed[rank], &without = trained[rank];
    CHECK(with.reduces == 1);
    CHECK(with.after[kWeight1] == with.before[kWeight1]);
    CHECK(with.after[kBias1] != with.before[kBias1]);
    for (const std::size_t unit : {0, 1, 3}) CHECK(with.gradients[unit] == without.gradients[unit]);
    for (const auto& unit : with.gradients) {
      for (const float value : unit) squares += static_cast<double>(value) * value;
    }
  }
  CHECK(mixed[0].norm == Approx(std::sqrt(squares)).epsilon(1e-5));  // of a few hundred squares, rounded to f32 once
  CHECK(mixed[0].norm < trained[0].norm);
}

TEST_CASE("units that lie before everything that is trained have no backward") {
  const auto gathers = on_ranks(2, [](World& world) {
    ChainRun run(world, {.schedule = {.prefetch = 0}});
    run.model.head.set_trainable(false);
    for (std::size_t i = 0; i < 2; ++i) {
      run.model.layers[i]->weight.set_trainable(false);
      run.model.layers[i]->bias.set_trainable(false);
    }
    run.micro_batch(0);
    std::vector<std::ptrdiff_t> counts;
    for (int unit = 1; unit < 4; ++unit) counts.push_back(run.count(Kind::gather, unit));
    return counts;
  });
  CHECK(gathers[0] == std::vector<std::ptrdiff_t>{1, 1, 2});
}

TEST_CASE("a unit may be frozen and trained again between micro-batches") {
  const auto results = on_ranks(2, [](World& world) {
    ChainRun run(world);
    const auto set = [&](bool is_trainable) {
      run.model.layers[1]->weight.set_trainable(is_trainable);
      run.model.layers[1]->bias.set_trainable(is_trainable);
    };
    std::vector<bool> changed;
    for (int step = 1; step <= 3; ++step) {
      set(step != 2);
      const auto before = run.weights();
      run.micro_batch(step);
      run.optimizer->step(1e-2f, step);
      changed.push_back(run.weights()[kWeight1] != before[kWeight1]);
      changed.push_back(run.count(Kind::reduce, kLayer1) == 1);
    }
    return changed;
  });
  CHECK(results[0] == std::vector<bool>{true, true, false, false, true, true});
}

TEST_CASE("a unit that is frozen for good has weights and nothing else, and the others train as beside a frozen one") {
  struct Seen {
    Arrays after;
    std::int64_t gradients = 0, moments = 0, layer1 = 0;  // bytes: of all units, and of layer1's master weights
    std::map<std::string, std::set<std::string>> kinds;   // of the state, by parameter
    std::ptrdiff_t reduces = 0;
  };
  const auto run = [](World& world, bool for_good) {
    ChainRun run(world, {.division = {Division::Rule::none}}, [&](Chain& chain, ShardedRuntime& runtime) {
      shard_module(chain, runtime, Units::block, {}, [&](const Module& module) {
        return UnitPolicy{.is_frozen = for_good && module.path() == "layer1"};
      });
      if (for_good) return;
      chain.layers[1]->weight.set_trainable(false);
      chain.layers[1]->bias.set_trainable(false);
    });
    for (int step = 1; step <= 2; ++step) {
      run.micro_batch(step);
      run.optimizer->step(1e-2f, step);
    }
    Seen seen;
    seen.reduces = run.count(Kind::reduce, kLayer1);
    seen.after = run.weights();
    const std::map<std::string, std::int64_t>& live = run.device->memory().live_by_label();
    seen.gradients = live.at("grad_shard");
    seen.moments = live.at("moments");
    seen.layer1 = run.runtime.executor().units()[kLayer1].master.bytes();
    for (const HeldTensor& held : held_tensors(run.runtime.executor(), &*run.optimizer))
      seen.kinds[held.tensor.parameter].insert(held.tensor.kind);
    return seen;
  };
  const int ranks = GENERATE(1, 2, 3);
  const auto for_good = on_ranks(ranks, [&](World& world) { return run(world, true); });
  const auto for_now = on_ranks(ranks, [&](World& world) { return run(world, false); });
  CHECK(for_now[0].kinds.at("layer1.weight") == std::set<std::string>{"adamw.m", "adamw.v", "master"});
  CHECK(for_good[0].after == for_now[0].after);
  CHECK(for_good[0].reduces == 0);
  CHECK(for_good[0].gradients == for_now[0].gradients - for_now[0].layer1);
  CHECK(for_good[0].moments == for_now[0].moments - 2 * for_now[0].layer1);
  for (const char* const name : {"layer1.weight", "layer1.bias"})
    CHECK(for_good[0].kinds.at(name) == std::set<std::string>{"master"});
  CHECK(for_good[0].kinds.at("layer0.weight") == std::set<std::string>{"adamw.m", "adamw.v", "master"});
}

TEST_CASE("a parameter of a unit that is frozen for good cannot be trained") {
  const auto messages = on_ranks(1, [](World& world) {
    ChainRun run(world, {}, [](Chain& chain, ShardedRuntime& runtime) {
      shard_module(chain, runtime, Units::block, {},
                   [](const Module& module) { return UnitPolicy{.is_frozen = module.path() == "layer1"}; });
    });
    run.model.layers[1]->bias.set_trainable(true);
    return message_of([&] { run.micro_batch(1); });
  });
  CHECK(messages[0].find("layer1.bias is to be trained, and its unit layer1 is frozen") != std::string::npos);
}

TEST_CASE("an ignored parameter is in no unit, and its gradient is this rank's own, not reduced") {
  struct Result {
    std::vector<float> value, own_gradient;
    std::size_t sharded = 0;
  };
  const auto with_ignored = [](World& world, int sample) {
    const auto is_ignored = [](const Parameter& parameter) { return parameter.name() == "layer1.bias"; };
    ChainRun run(world, {}, [&](Chain& chain, ShardedRuntime& runtime) {
      shard_module(chain, runtime, Units::block, is_ignored);
    });
    PlainOwner owner(run.context);
    Parameter& ignored = run.model.layers[1]->bias;
    owner.add(ignored, std::vector<float>(kChainWidth, 0.25f));
    run.micro_batch(sample);
    run.optimizer->step(1e-2f, 1);
    Result result{{}, owner.grad(ignored).to_host(), 0};
    for (const FlatParameter& unit : run.runtime.executor().units()) result.sharded += unit.parameters.size();
    result.value.assign(ignored.value().as<float>(), ignored.value().as<float>() + kChainWidth);
    ignored.set_owner(nullptr);
    return result;
  };
  const auto two = on_ranks(2, [&](World& world) { return with_ignored(world, 0); });
  for (const Result& result : two) {
    CHECK(result.sharded == 6);
    CHECK(result.value == std::vector<float>(kChainWidth, 0.25f));
  }
  CHECK(two[0].own_gradient != two[1].own_gradient);
  const auto one = on_ranks(1, [&](World& world) { return with_ignored(world, 0); });
  CHECK(two[0].own_gradient == one[0].own_gradient);
}

TEST_CASE("a checkpoint holds parameters that are ignored in sharding") {
  const TempDir temp;
  const auto is_ignored = [](const Parameter& parameter) { return parameter.name() == "layer1.bias"; };
  const auto values = on_ranks(2, [&](World& world) {
    const auto value_after = [&](float value, const auto& use) {
      ChainRun run(world, {}, [&](Chain& chain, ShardedRuntime& runtime) {
        shard_module(chain, runtime, Units::block, is_ignored);
      });
      PlainOwner owner(run.context);
      Parameter& ignored = run.model.layers[1]->bias;
      owner.add(ignored, std::vector<float>(kChainWidth, value));
      use(TrainingState{world, run.runtime.executor(), *run.optimizer});
      run.device->synchronize();
      const float found = ignored.value().as<float>()[kChainWidth - 1];
      ignored.set_owner(nullptr);
      return found;
    };
    value_after(0.25f, [&](const TrainingState& state) { save(state, temp.path(), {.step = 0, .attributes = {}}); });
    return value_after(0.5f, [&](const TrainingState& state) { load(state, temp.path() + "/step-0"); });
  });
  CHECK(values == std::vector<float>{0.25f, 0.25f});
}

}  // namespace zs::test::frozen_test
