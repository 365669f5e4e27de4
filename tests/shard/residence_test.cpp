#include <catch2/catch.hpp>

#include <chrono>
#include <numeric>

#include "model/train/plan/plan.h"
#include "runtime/shard/checkpoint/state_by_name.h"
#include "runtime/shard/offload/host_link.h"
#include "runtime/shard/optimizers/grad_norm.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "runtime/tensor/host_view.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/residence_run.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::residence_test {
namespace {

std::int64_t kind_bytes(const TrainPlan& plan, const std::string& kind) {
  const auto found = plan.at_peak.find(kind);
  return found == plan.at_peak.end() ? 0 : found->second;
}

/// All values of the state after two steps, by parameter and kind; `loads`: they are put back first.
std::map<std::string, std::vector<float>> state_of(const Config& config, int ranks, bool whole, bool loads) {
  std::map<std::string, std::vector<float>> values;
  run_local_world(ranks, {.timeout_s = 60}, [&](World& world) {
    const TrainPlan plan = make_plan(config, {.rank = world.rank(), .ranks = ranks});
    const auto device = plan.create_device({.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Session session(*device, world, config);
    plan.apply_order(session.runtime());
    const TrainingState state{world, session.runtime().executor(), session.optimizer()};
    const auto step = [&](std::int64_t number) {
      session.enqueue_step(number, 1e-2f, tiny_samples(config), 0);
      session.finish_step();
    };
    step(1);
    const StateByName before = state_by_name(state, {.whole = whole, .on_host = true});
    step(2);
    if (loads) {
      load_by_name(state, before);
      step(2);
    }
    const StateByName found = state_by_name(state, {.whole = true, .on_host = true});
    if (world.rank() != 0) return;
    for (const HeldTensor& held : found.tensors) {
      const Buffer& data = held.pieces.at(0).data;
      values[held.tensor.parameter + " " + held.tensor.kind].assign(data.as<float>(), data.as<float>() + data.elems);
    }
  });
  return values;
}

}  // namespace

TEST_CASE("what the host keeps changes no bit, in every scheme and layout, in the memory of the plan", "[residence]") {
  const int ranks = GENERATE(1, 2, 4);
  const std::vector<std::string> kept = {
      "gradients", "weights and moments", "moments", "weights, gradients and moments", "gradients and moments",
      "weights"};
  for_each_scheme(tiny_config(), ranks, 1, [&](Config config, std::size_t number) {
    if (is_thinned_out()) return;
    config.precision.param = number % 2 == 0 ? "bf16" : "f32";
    check_alike(config, kept[(number - 1) % kept.size()], {.ranks = ranks, .steps = 3});
  });
}

TEST_CASE("2B-8, 3-27: f32 shards that the host keeps are gathered as those of the device, in every scheme",
          "[residence]") {
  const int ranks = GENERATE(1, 2, 4);
  for_each_scheme(tiny_config(), ranks, 2, [&](Config config, std::size_t number) {
    if (is_thinned_out()) return;
    if (number % 3 == 0) config.shard.prefetch = 2, config.shard.limit = 4;
    check_alike(config, number % 2 == 0 ? "weights and moments" : "weights, gradients and moments",
                {.ranks = ranks, .steps = 3});
  });
}

TEST_CASE("whole parameters that the host keeps come with their unit's, also for evaluations in f32", "[residence]") {
  Config config = tiny_config();
  config.train.global_batch = 4;
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  choose_layout(config, "small whole");
  SECTION("f32") {}
  SECTION("f32, all of them") { config.shard.min_shard_bytes = 1 << 20; }
  SECTION("bf16, validated in f32") { config.precision.param = "bf16", config.precision.validation = "f32"; }
  SECTION("blocks that run again, set aside under a limit") {
    config.train.recompute = {"block"};
    config.shard.limit = 3;
  }
  check_alike(config, "weights", {.ranks = 2, .steps = 3});
}

TEST_CASE("of f32 weights that the host keeps the device has the units that are at work", "[residence]") {
  Config config = tiny_config();
  config.model.layers = 8;
  config.train.global_batch = 1;
  const TrainPlan usual = make_plan(config, 0, 1), plan = make_plan(with_host(config, "weights and moments"), 0, 1);
  const std::int64_t masters = kind_bytes(usual, "master");
  CHECK(kind_bytes(plan, "master") == 0);
  CHECK(plan.host_by_kind == std::map<std::string, std::int64_t>{{"master", masters}, {"moments", 2 * masters}});
  std::int64_t largest = 0, most = 0;
  for (const TrainPlan::Unit& unit : plan.units)
    largest = std::max(largest, unit.layout->held_elems() * size_of(DType::f32));
  for (const auto& [label, bytes] : plan.at_peak)
    if (label == "full_param") most = bytes;
  CHECK(most > 0);
  CHECK(most < masters - 4 * (masters - largest) / 8);
}

TEST_CASE("what the host keeps changes no bit of momentum, stochastic rounding, validations and evaluations in between",
          "[residence]") {
  Config config = tiny_config();
  config.precision.param = "bf16";
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  config.train.global_batch = 4;
  SECTION("momentum") {
    config.train.optimizer = "sgd";
    config.train.momentum = 0.9;
    config.train.weight_decay = 0;
  }
  SECTION("matrices made orthogonal") { config = trained_by(config, "muon"); }
  SECTION("moments of 8 bits, stochastic rounding") {
    config = trained_by(config, "adamw8bit");
    config.precision.rounding = "stochastic";
  }
  SECTION("stochastic rounding") { config.precision.rounding = "stochastic"; }
  SECTION("bf16 on the wire") { config.precision.reduce = "bf16"; }
  check_alike(config, "weights, gradients and moments", {.ranks = 2, .steps = 3});
}

TEST_CASE("inputs of blocks that the host keeps go with all else that it keeps, in the memory of the plan",
          "[residence]") {
  Config config = tiny_config();
  config.precision.param = "bf16";
  config.train.global_batch = 4;
  config.train.recompute = {"block"};
  for (const char* const what : {"activations", "activations and weights", "activations and gradients",
                                 "activations and moments", "weights, gradients, moments and activations"})
    check_alike(config, what, {.ranks = 2, .steps = 3});
}

TEST_CASE("units that stay resident change no bit, in the memory of the plan", "[residence]") {
  const int ranks = GENERATE(1, 2, 4);
  const std::string strategy = GENERATE(as<std::string>{}, "zero3", "zero1");
  Config config = tiny_config();
  config.shard.strategy = strategy;
  config.shard.reshard_after_forward = strategy == "zero3";
  config.precision.param = "bf16";
  config.train.global_batch = 4 * ranks;
  config.train.deterministic = ranks > 1;  // else squares are added up in the order of units
  config.offload.resident_units = {.value = strategy == "zero3" ? 1 : 3};
  check_alike(config, "weights, gradients and moments", {.ranks = ranks});
}

TEST_CASE("the device keeps the first units' parts, as many as are asked for, and the host the others'",
          "[residence]") {
  Config config = tiny_config();
  config.precision.param = "bf16";
  const TrainPlan usual = make_plan(config, 0, 2);
  config = with_host(config, "weights, gradients and moments");
  for (std::size_t units = 0; units <= usual.units.size(); ++units) {
    config.offload.resident_units = {.value = static_cast<std::int64_t>(units)};
    const TrainPlan plan = make_plan(config, 0, 2);
    std::int64_t masters = 0;
    for (std::size_t i = units; i < usual.units.size(); ++i)
      masters += usual.units[i].layout->held_elems() * size_of(DType::f32);
    CAPTURE(units);
    CHECK(plan.host_bytes == 4 * masters);
    CHECK(plan.persistent_bytes + plan.host_bytes ==
          usual.persistent_bytes + (units < usual.units.size() ? kMarks : 0));
    if (units == usual.units.size()) CHECK(plan.step_peak_bytes == usual.step_peak_bytes);
  }
}

TEST_CASE("the norm adds up units in their order, wherever their gradients are", "[residence]") {
  Config config = with_host(tiny_config(), "gradients");
  config.train.deterministic = false;
  config.offload.resident_units = {.value = 1};
  const TrainPlan plan = make_plan(config, 0, 1);
  std::vector<std::size_t> read, expected;  // of the sum so far and of each unit's parameters
  for (const TraceEntry& entry : plan.trace)
    if (entry.kind == TraceEntry::Kind::op && entry.op.name == "squared_norm") read.push_back(entry.op.reads.size());
  for (const TrainPlan::Unit& unit : plan.units)
    expected.push_back(unit.layout->views().size() + (expected.empty() ? 0 : 1));
  CHECK(read == expected);
}

TEST_CASE("what the host keeps is the same whatever runs late", "[residence]") {
  Config config = trained_by(tiny_config(), GENERATE(as<std::string>{}, "adamw", "muon", "adamw8bit"));
  config.precision.param = GENERATE(as<std::string>{}, "bf16", "f32");
  const auto seed = GENERATE(std::uint64_t{3}, std::uint64_t{4}, std::uint64_t{5});
  if (is_thinned_out()) return;
  config.train.global_batch = 8;
  const TinyResult usual = train_tiny(config, {.ranks = 2, .is_calm = true});
  const TempDir disk;
  Config kept = with_host(config, "weights, gradients and moments");
  if (seed > 3) kept = with_disk(kept, seed == 4 ? of_disk(config) : "moments", disk.path());
  const TinyResult run = train_tiny(kept, {.ranks = 2, .perturb_seed = seed});
  CHECK(run.losses == usual.losses);
  CHECK(run.weights == usual.weights);
}

TEST_CASE("what the host keeps is not on the device, but for the units that are updated", "[residence]") {
  Config config = tiny_config();
  config.precision.param = "bf16";
  const TrainPlan usual = make_plan(config, 0, 2), plan = make_plan(with_host(config, "weights and moments"), 0, 2);
  const std::int64_t masters = kind_bytes(usual, "master"), moments = kind_bytes(usual, "moments");
  CHECK(moments == 2 * masters);
  CHECK(plan.host_by_kind == std::map<std::string, std::int64_t>{{"master", masters}, {"moments", moments}});
  CHECK(plan.host_bytes == masters + moments);
  CHECK(plan.pinned_bytes == masters + moments);
  CHECK(kind_bytes(plan, "master") == 0);
  CHECK(kind_bytes(plan, "moments") == 0);
  CHECK(usual.persistent_bytes - plan.persistent_bytes == masters + moments - kMarks);
  std::int64_t windows = 0;
  for (const PlannedBuffer& buffer : plan.buffers) windows += buffer.label == "host_window" ? 1 : 0;
  CHECK(windows == 3 * std::ssize(plan.units));
  CHECK(usual.host_bytes == 0);
  CHECK(usual.pinned_bytes == 0);
}

TEST_CASE("I2: a checkpoint is the same wherever the state is kept, and is loaded to there", "[residence]") {
  Config config = trained_by(tiny_config(), GENERATE(as<std::string>{}, "adamw", "muon", "adamw8bit"));
  config.precision.param = GENERATE(as<std::string>{}, "bf16", "f32");
  if (is_thinned_out()) return;
  const TempDir on_device, on_host;
  const TinyResult usual = train_tiny(config, {.ranks = 2, .steps = 3});
  const Config kept = with_host(config, "weights and moments");
  const TinyResult saved = train_tiny(kept, {.ranks = 2, .steps = 2, .checkpoints = on_host.path()});
  const TinyResult plain = train_tiny(config, {.ranks = 2, .steps = 2, .checkpoints = on_device.path()});
  CHECK(train_tiny(config, {.ranks = 2, .steps = 3, .resume = saved.saved}).weights == usual.weights);
  CHECK(train_tiny(kept, {.ranks = 1, .steps = 3, .resume = plain.saved}).weights == usual.weights);
  CHECK(train_tiny(kept, {.ranks = 4, .steps = 3, .resume = saved.saved}).weights == usual.weights);
  Config partly = kept;
  partly.offload.resident_units = {.value = 2};
  const TempDir in_part;
  const TinyResult both = train_tiny(partly, {.ranks = 2, .steps = 2, .checkpoints = in_part.path()});
  CHECK(train_tiny(kept, {.ranks = 2, .steps = 3, .resume = both.saved}).weights == usual.weights);
  CHECK(train_tiny(partly, {.ranks = 1, .steps = 3, .resume = saved.saved}).weights == usual.weights);
  const TempDir disk, on_disk;
  const Config away = with_disk(config, of_disk(config), disk / "state");
  const TinyResult third = train_tiny(away, {.ranks = 2, .steps = 2, .checkpoints = on_disk.path()});
  CHECK(train_tiny(config, {.ranks = 4, .steps = 3, .resume = third.saved}).weights == usual.weights);
  CHECK(train_tiny(away, {.ranks = 1, .steps = 3, .resume = saved.saved}).weights == usual.weights);
}

TEST_CASE("state by name is read and put back where the host keeps it", "[residence]") {
  const bool whole = GENERATE(true, false);
  Config config = trained_by(tiny_config(), GENERATE(as<std::string>{}, "adamw", "muon"));
  config.precision.param = GENERATE(as<std::string>{}, "bf16", "f32");
  if (is_thinned_out()) return;
  const auto expected = state_of(config, 2, whole, false);
  CHECK(state_of(with_host(config, "weights and moments"), 2, whole, false) == expected);
  CHECK(state_of(with_host(config, "weights and moments"), 2, whole, true) == expected);
  Config partly = with_host(config, "weights and moments");
  partly.offload.resident_units = {.value = 1};
  CHECK(state_of(partly, 2, whole, true) == expected);
  const TempDir disk;
  CHECK(state_of(with_disk(config, of_disk(config), disk.path()), 2, whole, false) == expected);
  CHECK(state_of(with_disk(config, of_disk(config), disk.path()), 2, whole, true) == expected);
  CHECK(expected.size() > 3 * 20 - 4 * 3);  // without Muon's second moment of a block's four matrices
}

TEST_CASE("gradients that the host keeps are summed, clipped, shown and used as those of the device", "[residence]") {
  const int ranks = GENERATE(1, 2, 3);
  const auto run = [&](bool on_host, const std::string& name, const LayoutOptions& layout, int resident = 0) {
    ShardOptions options{.scheme = scheme_of(name, ranks), .layout = layout};
    options.residence.has_gradients_on_host = on_host;
    options.resident_units = resident;
    return on_ranks(ranks, [&](World& world) {
      ChainRun chain(world, options);
      for (int i = 0; i < 3; ++i) chain.micro_batch(i, i == 2);
      std::vector<std::vector<float>> all{clip_grad_norm(chain.runtime.executor(), 0.01f, {.power = 3}).to_host()};
      {
        std::vector<int> units(chain.runtime.executor().units().size());
        std::iota(units.begin(), units.end(), 0);
        const UnshardScope scope(chain.runtime, units, {.with_gradients = true});
        for (const FlatParameter& unit : chain.runtime.executor().units()) {
          for (const Parameter* parameter : unit.parameters) {
            const HostView view(chain.context, chain.context.stream(), scope.gradient(*parameter));
            all.emplace_back(view.as<float>(), view.as<float>() + parameter->numel());
          }
        }
      }
      chain.optimizer->step(0.1f);
      for (std::vector<float>& weights : chain.weights()) all.push_back(std::move(weights));
      return all;
    });
  };
  for (const std::string name : {"ddp", "zero1", "zero3", "zero3 once", "hsdp", "nested"}) {
    for (const LayoutOptions& layout :
         {LayoutOptions{}, LayoutOptions{.layout = Layout::per_parameter, .min_shard_bytes = 100}}) {
      if (ranks == 3 && (name == "hsdp" || name == "nested")) continue;
      CAPTURE(ranks, name, name_of(layout.layout));
      const auto usual = run(false, name, layout);
      CHECK(run(true, name, layout) == usual);
      CHECK(run(true, name, layout, 2) == usual);
    }
  }
}

TEST_CASE("gradients of an abandoned step leave nothing behind on the device", "[residence]") {
  const int ranks = GENERATE(1, 2);
  const auto run = [&](bool abandons) {
    ShardOptions options;
    options.residence.has_gradients_on_host = true;
    return on_ranks(ranks, [&](World& world) {
      ChainRun chain(world, options);
      chain.micro_batch(0);
      chain.optimizer->step(0.1f);
      if (abandons) {
        chain.micro_batch(1, false);
        chain.runtime.begin_micro_batch(Mode::train, true);
        backward(chain.model.loss(chain_input(chain.context, 3), chain_targets(chain.context)), 1.0f);
        chain.runtime.abandon_step();
      }
      chain.micro_batch(2);
      chain.optimizer->step(0.1f);
      return chain.weights();
    });
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("a link of so many bytes a second moves no more", "[residence]") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  HostLink link(context, 0.02);
  constexpr std::int64_t kBytes = 1'000'000;
  const Memory home = link.acquire(kBytes, "moments");
  HostLink::Window window = link.open("a unit", {home.buffer(DType::f32, kBytes / 4)});
  const Buffer here = window[0];
  context.launch({"zero", {}, {here}},
                 [&kernels = context.kernels(), here](ExecContext& exec) { kernels.zero(exec, here); });
  device->synchronize();
  const auto begin = std::chrono::steady_clock::now();
  link.store(std::move(window));
  device->synchronize();
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(50));
}
}  // namespace zs::test::residence_test
