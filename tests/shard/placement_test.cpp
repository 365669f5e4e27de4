// Units of one model that are placed each in its own way: over other ranks, between forward and backward over fewer, by
// another rule.
#include <catch2/catch.hpp>

#include <cmath>

#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/tensor/host_view.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::placement_test {
namespace {

using Catch::Contains;
using Kind = Action::Kind;
using Arrays = std::vector<std::vector<float>>;
/// Of root, layer0, layer1, layer2.
using Placed = std::vector<UnitPolicy>;

constexpr int kRanks = 4;

Placed in(const std::vector<std::string>& schemes, int ranks = kRanks) {
  Placed placed;
  for (const std::string& name : schemes) placed.push_back({.scheme = scheme_of(name, ranks)});
  return placed;
}

/// Replicas are neighbours, and the second half of the ranks comes first.
SchemeOptions own_mesh() {
  return {.mesh = MeshLayout{.axes = {{"shard", 2}, {"replica", 2}},
                             .order = {2, 3, 0, 1},
                             .runtime = {"shard"},
                             .master = {"shard"},
                             .replicate = {"replica"}}};
}

auto shard_by(const Placed& placed) {
  return [placed](Chain& chain, ShardedRuntime& runtime) {
    std::size_t next = 0;
    shard_module(chain, runtime, Units::block, {},
                 [&](const Module&) { return next < placed.size() ? placed[next++] : UnitPolicy{}; });
  };
}

/// What a step sends for a unit is what its actions say: of n ranks each sends n - 1 of n parts.
struct Sent {
  std::int64_t parameters = 0, gradients = 0;
  bool operator==(const Sent&) const = default;
};

Sent sent_of(const std::vector<Action>& actions, const std::vector<FlatParameter>& units) {
  Sent sent;
  const auto parts = [](int ranks, std::int64_t elems) {
    return elems / ranks * (ranks - 1) * std::int64_t{sizeof(float)};
  };
  for (const Action& action : actions) {
    const FlatParameter& unit = units[static_cast<std::size_t>(action.unit)];
    const ShardScheme& scheme = unit.placement->scheme;
    const auto count = [&](const MeshAxes& axes) { return scheme.slice(axes).count; };
    const std::int64_t all = unit.layout->full_elems();
    const int masters = count(scheme.master), small = count(scheme.runtime), replicas = count(scheme.replicate);
    switch (action.kind) {
      case Kind::gather: sent.parameters += parts(masters, all); break;
      case Kind::two_level_gather: sent.parameters += parts(masters / small, all / small) + parts(small, all); break;
      case Kind::gather_secondary: sent.parameters += parts(count(scheme.between), all); break;
      case Kind::reduce: sent.gradients += parts(count(scheme.reduced), all); break;
      case Kind::finish:
        sent.gradients += replicas > 1 ? 2 * parts(replicas, all / masters) : parts(masters / small, all / small);
        break;
      default: break;
    }
  }
  return sent;
}

struct Outcome {
  Arrays weights;
  std::vector<float> norms;
  std::string violation;
  std::int64_t peak = 0, planned = 0;
  Sent sent, counted;  // in the last step
};

struct Way {
  SchemeOptions scheme = {};
  Placed placed = {};
  bool is_deterministic = true;
  bool zero_copy = false;
  float clip = 0.5f;
  int steps = 3;
};

ShardOptions options_of(const Way& way) {
  ShardOptions options{.scheme = way.scheme, .schedule = {.prefetch = 1}, .seed = 3, .zero_copy = way.zero_copy};
  options.scheme.deterministic = way.is_deterministic;
  return options;
}

/// Eight samples a step, each a micro-batch: the same at any number of ranks that divides 8.
template <class Run>
void step_of(Run& runtime, Chain& model, Context& context, int rank, int ranks, int step) {
  const int each = 8 / ranks;
  for (int i = 0; i < each; ++i) {
    runtime.begin_micro_batch(Mode::train, i + 1 == each);
    backward(model.loss(chain_input(context, step * 8 + i * ranks + rank), chain_targets(context)),
             1.0f / static_cast<float>(each));
    runtime.end_micro_batch();
  }
}

/// The most that the same steps take on the device that has no memory.
std::int64_t planned_peak(World& world, const Way& way) {
  const auto device = Device::create(DeviceKind::meta, {.threads = 1, .cpus = {}});
  const auto meta = make_meta_world(world.rank(), world.size(), transport_info_of(world));
  Context context(*device);
  Chain model;
  ShardedRuntime runtime(context, *meta, options_of(way));
  shard_by(way.placed)(model, runtime);
  AdamW optimizer(runtime.executor(), {.clip = way.clip, .order_free = true});
  for (int step = 1; step <= way.steps; ++step) {
    device->memory().reset_peak();
    step_of(runtime, model, context, world.rank(), world.size(), step);
    optimizer.step(1e-2f, step);
  }
  return device->memory().peak_bytes();
}

Outcome train(World& world, const Way& way) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Chain model;
  ShardedRuntime runtime(context, world, options_of(way));
  shard_by(way.placed)(model, runtime);
  AdamW optimizer(runtime.executor(), {.clip = way.clip, .order_free = way.is_deterministic});
  Outcome outcome;
  device->trace().start();
  for (int step = 1; step <= way.steps; ++step) {
    device->memory().reset_peak();
    const ShardGroups::Sent before = runtime.executor().groups().sent();
    std::vector<Action> actions;
    runtime.log_actions(&actions);
    step_of(runtime, model, context, world.rank(), world.size(), step);
    optimizer.step(1e-2f, step);
    outcome.norms.push_back(*HostView(context, context.stream(), optimizer.grad_norm()).as<float>());
    runtime.log_actions(nullptr);
    const ShardGroups::Sent sent = runtime.executor().groups().sent().since(before);
    outcome.sent = {sent.parameter_bytes(), sent.gradient_bytes()};
    outcome.counted = sent_of(actions, runtime.executor().units());
  }
  outcome.peak = device->memory().peak_bytes();
  outcome.planned = planned_peak(world, way);
  const auto violations = verify_order(device->trace().entries());
  if (!violations.empty()) outcome.violation = violations.front().message;
  for (int unit = 0; unit < 4; ++unit) {
    runtime.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
      outcome.weights.emplace_back(values, values + parameter.numel());
    });
  }
  return outcome;
}

std::vector<Outcome> outcomes_of(int ranks, const Way& way) {
  return on_ranks(ranks, [&](World& world) { return train(world, way); });
}

/// Every pair of schemes meets in one of these.
std::vector<Placed> mixtures(int ranks) {
  std::vector<Placed> all;
  const auto& names = scheme_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::vector<std::string> chosen;
    for (std::size_t unit = 0; unit < 4; ++unit) chosen.push_back(names[(i + unit * (1 + i % 5)) % names.size()]);
    all.push_back(in(chosen, ranks));
  }
  return all;
}

}  // namespace

TEST_CASE(
    "I1, I4, I5: units placed each in its own way train to the bits of one rank, in the memory that was planned") {
  const Outcome expected = outcomes_of(1, {})[0];
  for (const int ranks : {2, 4, 8}) {
    for (const Placed& placed : mixtures(ranks)) {
      CAPTURE(ranks, name_of(placed[0].scheme->strategy), name_of(placed[1].scheme->strategy),
              name_of(placed[2].scheme->strategy), name_of(placed[3].scheme->strategy));
      for (const Outcome& outcome : outcomes_of(ranks, {.placed = placed, .zero_copy = ranks == 2, .steps = 3})) {
        CHECK(outcome.weights == expected.weights);
        CHECK(outcome.norms == expected.norms);
        CHECK(outcome.violation == "");
        if (ranks != 2) CHECK(outcome.peak == outcome.planned);  // a meta world shares no memory of these sizes
      }
    }
  }
}

TEST_CASE("I3, I4: what units placed each in its own way send is the sum of what each sends") {
  std::vector<Placed> all = mixtures(kRanks);
  all.push_back(
      {{}, {.scheme = own_mesh()}, {.reshard_after_forward = Reshard::over(2)}, {.scheme = scheme_of("ddp", kRanks)}});
  const Outcome expected = outcomes_of(1, {.is_deterministic = false})[0];
  for (const Placed& placed : all) {
    for (const Outcome& outcome : outcomes_of(kRanks, {.placed = placed, .is_deterministic = false})) {
      CHECK(outcome.sent == outcome.counted);
      CHECK(outcome.violation == "");
      CHECK(outcome.peak == outcome.planned);
      for (std::size_t step = 0; step < outcome.norms.size(); ++step)
        CHECK(outcome.norms[step] == Approx(expected.norms[step]).epsilon(1e-5));
      for (std::size_t i = 0; i < outcome.weights.size(); ++i)
        for (std::size_t j = 0; j < outcome.weights[i].size(); ++j)
          CHECK(outcome.weights[i][j] == Approx(expected.weights[i][j]).epsilon(1e-3).margin(1e-5));
    }
  }
}

TEST_CASE("2A-28: replicas take one step, whatever the units are replicas over") {
  const Placed placed{
      {}, {.scheme = scheme_of("ddp", kRanks)}, {.scheme = scheme_of("hsdp", kRanks)}, {.scheme = own_mesh()}};
  const auto outcomes = outcomes_of(kRanks, {.placed = placed, .is_deterministic = false});
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.norms == outcomes[0].norms);
    CHECK(outcome.weights == outcomes[0].weights);
  }
}

TEST_CASE("2B-22: a unit's own division is its own") {
  const auto gradients = on_ranks(kRanks, [](World& world) {
    ChainRun run(
        world, {.zero_copy = false},
        shard_by(
            {{}, {.division = Division{Division::Rule::custom, 8}}, {}, {.division = Division{Division::Rule::none}}}));
    run.micro_batch(1);
    run.runtime.executor().wait_reductions();
    ChainRun plain(world, {.zero_copy = false});
    plain.micro_batch(1);
    plain.runtime.executor().wait_reductions();
    return std::pair(run.gradients(), plain.gradients());
  });
  constexpr std::array kTimes = {1.0f, 0.5f, 1.0f, 4.0f};
  for (const auto& [own, plain] : gradients) {
    for (std::size_t unit = 0; unit < own.size(); ++unit)
      for (std::size_t i = 0; i < own[unit].size(); ++i) CHECK(own[unit][i] == Approx(plain[unit][i] * kTimes[unit]));
  }
}

TEST_CASE("I2: a checkpoint of units placed each in its own way goes on in another way, at another number of ranks") {
  const Outcome expected = outcomes_of(1, {.steps = 4})[0];
  const TempDir folder;
  const auto run = [&](int ranks, const Placed& placed, bool is_first) {
    return on_ranks(ranks, [&](World& world) {
      const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
      Context context(*device);
      Chain model;
      ShardedRuntime runtime(context, world, options_of({.placed = placed}));
      shard_by(placed)(model, runtime);
      AdamW optimizer(runtime.executor(), {.clip = 0.5f, .order_free = true});
      const TrainingState state{world, runtime.executor(), optimizer};
      if (!is_first) load(state, folder.path() + "/step-2");
      for (int step = is_first ? 1 : 3; step <= (is_first ? 2 : 4); ++step) {
        step_of(runtime, model, context, world.rank(), world.size(), step);
        optimizer.step(1e-2f, step);
      }
      if (is_first) save(state, folder.path(), {.step = 2, .attributes = {}});
      Arrays weights;
      for (int unit = 0; unit < 4; ++unit) {
        runtime.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
          weights.emplace_back(values, values + parameter.numel());
        });
      }
      return weights;
    });
  };
  run(4, in({"hsdp", "zero3 k", "ddp", "nested"}), true);
  CHECK(run(2, in({"zero1", "ddp", "zero3", "hsdp"}, 2), false)[1] == expected.weights);
  CHECK(run(8, {}, false)[7] == expected.weights);
  CHECK(run(1, {}, false)[0] == expected.weights);
}

TEST_CASE("I5: a unit that one rank places otherwise is named before the optimizer's step") {
  const auto messages = on_ranks(kRanks, [](World& world) {
    const Division own{world.rank() >= 2 ? Division::Rule::none : Division::Rule::split_root};
    return message_of([&] {
      ChainRun run(world, {}, shard_by({{}, {.division = own}}));
      run.micro_batch(1);
      run.optimizer->step(1e-2f, 1);
      run.device->synchronize();
    });
  });
  for (const std::string& message : messages) {
    CHECK_THAT(message, Contains("the ranks disagree on the placement of unit layer0 in step 1: rank 0 has zero3") &&
                            Contains("divided by 2 before and 2 after the sum") && Contains("rank 2 has zero3") &&
                            Contains("divided by 1 before and 1 after the sum"));
  }
}

TEST_CASE("I7: a micro-batch that is abandoned leaves units placed each in its own way ready for another") {
  for (const Placed& placed : mixtures(kRanks)) {
    const auto same = on_ranks(kRanks, [&](World& world) {
      const auto weights = [&](bool is_disturbed) {
        ChainRun run(world, options_of({}), shard_by(placed));
        for (int step = 1; step <= 2; ++step) {
          if (is_disturbed) {
            run.runtime.begin_micro_batch(Mode::train, step == 1);
            run.model.loss(chain_input(run.context, 5), chain_targets(run.context));
            run.runtime.abandon_step();
          }
          run.micro_batch(2 * step, false);
          run.micro_batch(2 * step + 1);
          run.optimizer->step(1e-2f, step);
        }
        return run.weights();
      };
      return weights(true) == weights(false);
    });
    CHECK(same == std::vector<bool>(kRanks, true));
  }
}

TEST_CASE("2A-2: small groups are the ranks of a host where nobody says otherwise") {
  const auto sizes = on_ranks(kRanks, [](World& world) {
    const ChainRun run(world, {.scheme = {.strategy = Strategy::hsdp}},
                       shard_by({{}, {.scheme = SchemeOptions{.strategy = Strategy::nested}}}));
    const auto& units = run.runtime.executor().units();
    return std::pair(run.runtime.executor().scheme().options().group_size,
                     units[1].placement->scheme.options().group_size);
  });
  CHECK(sizes == std::vector(kRanks, std::pair(kRanks, kRanks)));  // threads of one host
}

}  // namespace zs::test::placement_test
