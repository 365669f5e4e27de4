// Updates that the host's processors make, where masters and moments lie.
#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "runtime/shard/checkpoint/state_by_name.h"
#include "runtime/shard/optimizers/muon.h"
#include "runtime/shard/optimizers/sgd.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/residence_run.h"
#include "tests/shard/scheme_cases.h"
#include "tests/skip.h"

namespace zs::test::host_update_test {
namespace {

Config updated_on_host(Config config) {
  config = with_host(std::move(config), "weights, gradients and moments");
  config.offload.update = "host";
  return config;
}

constexpr Residence kOnHost = {
    .has_masters_on_host = true, .has_moments_on_host = true, .has_gradients_on_host = true, .updates_on_host = true};

/// Trains, with what an optimizer meets on its way, and reads the weights now and then: all of them.
std::vector<std::vector<float>> look_at_training(int ranks, const ShardOptions& options) {
  const auto of_ranks = on_ranks(ranks, [&](World& world) {
    ChainRun chain(world, options);
    std::vector<std::vector<float>> all;
    const auto look = [&](const std::vector<std::vector<float>>& values) {
      all.insert(all.end(), values.begin(), values.end());
    };
    Parameter& weight = chain.model.layers[1]->weight;
    const auto step = [&](int number, float lr, float seed = 1) {
      chain.micro_batch(2 * number, false, seed);
      chain.micro_batch(2 * number + 1, true, seed);
      chain.optimizer->step(lr);
    };
    step(0, 0.1f);
    weight.set_trainable(false);  // within a unit, behind its update and before it is made
    step(1, 0.2f);
    look(chain.weights());
    step(2, 0.1f);
    weight.set_trainable(true);
    step(3, 0.1f, std::numeric_limits<float>::infinity());  // skipped
    chain.model.layers[0]->weight.set_trainable(false);
    chain.model.layers[0]->bias.set_trainable(false);  // all of a unit
    step(4, 0.05f);
    chain.optimizer->set_scalars(7.0f, 9);  // of a step that does not come
    all.push_back({static_cast<float>(chain.optimizer->skipped())});
    const TrainingState state{world, chain.runtime.executor(), *chain.optimizer};
    for (const HeldTensor& held : state_by_name(state, {.whole = true, .on_host = true}).tensors) {
      const Buffer& data = held.pieces.at(0).data;
      all.emplace_back(data.as<float>(), data.as<float>() + data.elems);
    }
    step(5, 0.1f);
    chain.runtime.begin_micro_batch(Mode::eval, true);
    all.push_back(chain.model.loss(chain_input(chain.context, 3, options.precision.param), chain_targets(chain.context))
                      .to_host());
    chain.runtime.end_micro_batch();
    chain.optimizer.reset();
    look(chain.weights());
    return all;
  });
  return of_ranks.front();
}

}  // namespace

TEST_CASE("updates by the host change no bit, in every scheme and layout, in the memory of the plan") {
  const int ranks = GENERATE(1, 2, 4);
  for_each_scheme(tiny_config(), ranks, 1, [&](Config config, std::size_t number) {
    if (is_thinned_out()) return;
    config.precision.param = number / 2 % 2 == 0 ? "bf16" : "f32";
    if (number % 3 == 0) config.shard.prefetch = 2, config.shard.limit = 4;
    config.train.optimizer = std::vector<std::string>{"adamw", "adamw", "lion", "sgd"}[number % 4];
    config.train.momentum = config.train.optimizer == "sgd" && number % 8 == 3 ? 0.9 : 0;
    Config kept = updated_on_host(config);
    if (config.train.optimizer == "sgd" && config.train.momentum == 0) kept.offload.moments = "device";
    kept.offload.resident_units = {.value = static_cast<std::int64_t>(number % 2)};
    check_alike(config, kept, {.ranks = ranks, .steps = 3});
  });
}

TEST_CASE("updates by the host go by what was so at their step, and are there for whoever looks") {
  const int ranks = GENERATE(1, 2);
  const bool is_zero_copy = GENERATE(false, true);
  ShardOptions options{.zero_copy = is_zero_copy};
  SECTION("f32") {}
  SECTION("bf16") { options.precision.param = DType::bf16; }
  SECTION("bf16, rounded at random") {
    options.precision.param = DType::bf16;
    options.precision.rounds_stochastically = true;
  }
  SECTION("bf16, small parameters whole") {
    options.precision.param = DType::bf16;
    options.layout = {.layout = Layout::per_parameter, .min_shard_bytes = 100};
  }
  ShardOptions kept = options;
  kept.residence = kOnHost;
  CAPTURE(ranks, is_zero_copy, name_of(options.precision.param));
  const auto usual = look_at_training(ranks, options);
  CHECK(look_at_training(ranks, kept) == usual);
  kept.resident_units = 2;
  CHECK(look_at_training(ranks, kept) == usual);
}

TEST_CASE("updates by the host are the same whatever runs late, and when a run goes on") {
  Config config = tiny_config();
  config.precision.param = GENERATE(as<std::string>{}, "bf16", "f32");
  if (is_thinned_out()) return;
  config.train.global_batch = 8;
  const Config kept = updated_on_host(config);
  const TinyResult usual = train_tiny(config, {.ranks = 2, .steps = 3, .is_calm = true});
  for (const std::uint64_t seed : {3, 4, 5})
    CHECK(train_tiny(kept, {.ranks = 2, .steps = 3, .perturb_seed = seed}).weights == usual.weights);
  const TempDir on_host, on_device;
  const TinyResult saved = train_tiny(kept, {.ranks = 2, .steps = 2, .checkpoints = on_host.path()});
  CHECK(train_tiny(config, {.ranks = 1, .steps = 3, .resume = saved.saved}).weights == usual.weights);
  CHECK(train_tiny(kept, {.ranks = 4, .steps = 3, .resume = saved.saved}).weights == usual.weights);
  const TinyResult plain = train_tiny(config, {.ranks = 2, .steps = 2, .checkpoints = on_device.path()});
  CHECK(train_tiny(kept, {.ranks = 1, .steps = 3, .resume = plain.saved}).weights == usual.weights);
}

TEST_CASE("a step that fails leaves no update to the host") {
  const DType param = GENERATE(DType::f32, DType::bf16);
  const auto outcomes = on_ranks(2, [&](World& world) {
    ShardOptions options;
    options.precision.param = param;
    options.residence = kOnHost;
    ChainRun chain(world, options);
    chain.micro_batch(0);
    chain.optimizer->step(0.1f);
    const auto before = chain.weights();
    const std::string message = message_of([&] {
      chain.micro_batch(1);
      chain.optimizer->step(world.rank() == 0 ? 0.1f : 0.2f);
      chain.device->synchronize();
    });
    return std::pair(message, chain.weights() == before);
  });
  for (const auto& [message, is_untouched] : outcomes) {
    CHECK_THAT(message, Catch::Contains("the ranks disagree on the learning rate"));
    CHECK(is_untouched);
  }
}

TEST_CASE("updates by the host need no memory of the device, and the host's for two units' copies") {
  Config config = tiny_config();
  config.precision.param = "bf16";
  config.train.global_batch = 2;
  const TrainPlan plan = make_plan(updated_on_host(config), 0, 2);
  std::vector<std::int64_t> copies;
  std::int64_t masters = 0;
  for (const TrainPlan::Unit& unit : plan.units) {
    copies.push_back(unit.layout->held_elems() * size_of(DType::bf16));
    masters += unit.layout->held_elems() * size_of(DType::f32);
  }
  constexpr std::int64_t kScalars = 64;
  CHECK(plan.host_by_kind ==
        std::map<std::string, std::int64_t>{
            {"grad_shard", masters}, {"master", masters}, {"moments", 2 * masters}, {"scalars", kScalars}});
  std::sort(copies.rbegin(), copies.rend());
  CHECK(plan.pinned_bytes >= plan.host_bytes + copies[0] + copies[1]);
  CHECK(plan.pinned_bytes <= plan.host_bytes + 3 * copies[0]);  // and the gaps that smaller units leave
  CHECK_THAT(describe(plan, config, 2, false), Catch::Contains("  param_window "));
  std::int64_t moved = 0;
  for (const TraceEntry& entry : plan.trace) {
    if (entry.kind != TraceEntry::Kind::op || entry.phase != "optimizer" || entry.stream != StreamRole::offload)
      continue;
    for (const Buffer& buffer : entry.op.writes) moved += buffer.bytes();
  }
  // Beside the step's scalars, and the gradients for their norm, once or twice.
  CHECK((moved - masters / 2) % masters < 1024);
}

TEST_CASE("updates by the host need all that they work on there, and an optimizer that they are there for") {
  const auto without = [](auto Residence::*member) {
    Residence residence = kOnHost;
    residence.*member = {};
    return residence;
  };
  const auto problem = [](const Residence& residence, const auto& make) {
    const auto world = make_single_world({.timeout_s = 60});
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Context context(*device);
    Chain model;
    ShardedRuntime runtime(context, *world, in_tests({.residence = residence}));
    shard_module(model, runtime, Units::block);
    return message_of([&] { make(runtime.executor()); });
  };
  const auto refused = [&](const Residence& residence) {
    return problem(residence, [](Executor& executor) { const AdamW optimizer(executor, {}); });
  };
  CHECK_THAT(refused(without(&Residence::has_masters_on_host)),
             Catch::Contains("AdamW on the host of unit") && Catch::Contains("set has_masters_on_host"));
  CHECK_THAT(refused(without(&Residence::has_moments_on_host)), Catch::Contains("set has_moments_on_host"));
  CHECK_THAT(refused(without(&Residence::has_gradients_on_host)), Catch::Contains("set has_gradients_on_host"));
  const TempDir disk;
  Residence on_disk = kOnHost;
  on_disk.moments_disk = disk.path();
  CHECK_THAT(refused(on_disk), Catch::Contains("whose disk keeps what is updated"));
  const char* const other = "which is there for AdamW, Lion and Sgd alone";
  CHECK_THAT(problem(kOnHost, [](Executor& executor) { const AdamW optimizer(executor, {.average = 0.5f}); }),
             Catch::Contains("an average of the weights"));
  CHECK_THAT(problem(kOnHost, [](Executor& executor) { const Muon optimizer(executor, {}); }),
             Catch::Contains("Muon") && (Catch::Contains(other) || Catch::Contains("what the host keeps")));
  CHECK(refused(kOnHost).empty());
  CHECK(problem(without(&Residence::has_moments_on_host), [](Executor& executor) {
          const Sgd sgd(executor, {});
        }).empty());
}

}  // namespace zs::test::host_update_test
