// Frozen weights that are held once, in bf16: trainings, checkpoints and scopes are as with f32 masters.
#include <xxhash.h>

#include <catch2/catch.hpp>

#include <numeric>

#include "model/train/plan/plan.h"
#include "model/train/run_dir/weights.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/copy_weights.h"
#include "runtime/shard/checkpoint/state_by_name.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::frozen_held_test {
namespace {

using Arrays = std::vector<std::vector<float>>;
using Catch::Contains;

/// A small model, of which an adapter or some parameters are trained.
Config frozen_config(bool by_adapter, const std::string& param) {
  Config config = tiny_config();
  config.train.global_batch = 4;
  config.precision.param = param;
  config.precision.output = config.precision.validation = param;
  if (by_adapter) {
    config.lora.rank = 2;
    config.lora.alpha = 2;
    config.lora.targets = {"c_attn"};
  } else {
    config.train.frozen = {"blocks.{0-1}.mlp", "token_embedding*"};
  }
  return config;
}

/// A checkpoint of a step of the model, whose frozen weights are what bf16 can hold.
std::string rounded_start(Config config, const std::string& folder) {
  config.precision.frozen = "bf16";
  return train_tiny(config, {.ranks = 2, .steps = 1, .checkpoints = folder}).saved;
}

bool is_same(const TinyResult& a, const TinyResult& b) {
  return a.losses == b.losses && a.grad_norms == b.grad_norms && a.weights == b.weights;
}

/// A chain of which layer1, and the root's head, are frozen for good where it is said so.
struct FrozenRun : ChainRun {
  explicit FrozenRun(World& world, bool is_held_once, ShardOptions options = {})
      : ChainRun(world, with(is_held_once, std::move(options)), [](Chain& chain, ShardedRuntime& runtime) {
          shard_module(chain, runtime, Units::block, {},
                       [](const Module& module) { return UnitPolicy{.is_frozen = module.path() == "layer1"}; });
        }) {}
  static ShardOptions with(bool is_held_once, ShardOptions options) {
    options.seed = 3;
    if (is_held_once) options.frozen_dtype = DType::bf16;
    return options;
  }
  TrainingState state(World& world) { return {world, runtime.executor(), *optimizer}; }
};
constexpr int kFrozenUnit = 2;

}  // namespace

TEST_CASE("a training whose frozen weights are held once in bf16 has the bits of one with f32 masters") {
  const std::string scheme = GENERATE(from_range(main_schemes())),
                    layout = GENERATE("flat", "zero-copy", "small whole");
  const std::string param = GENERATE("f32", "bf16");
  const bool by_adapter = GENERATE(true, false);
  const int ranks = scheme == "hsdp" || scheme == "nested" ? 4 : GENERATE(1, 2);
  if (is_thinned_out()) return;
  CAPTURE(scheme, layout, param, by_adapter, ranks);
  Config config = frozen_config(by_adapter, param);
  choose_scheme(config, scheme_of(scheme, ranks));
  choose_layout(config, layout);
  if (scheme != "zero3") config.train.deterministic = false;
  const TempDir temp;
  const TinyOptions options{.ranks = ranks, .steps = 2, .resume = rounded_start(config, temp.path())};
  config.precision.frozen = "f32";
  const TinyResult with_masters = train_tiny(config, options);
  config.precision.frozen = "bf16";
  const TinyResult once = train_tiny(config, options);
  CHECK(is_same(once, with_masters));
  CHECK(once.peak_bytes == std::vector<std::int64_t>(1, make_plan(config, 0, ranks).step_peak_bytes));
}

TEST_CASE("a rank holds 2 bytes of each frozen parameter of its shard, and no master, gradient or moment of it") {
  const std::string param = GENERATE("f32", "bf16");
  const int ranks = GENERATE(1, 2, 4);
  Config config = frozen_config(true, param);
  const TrainPlan with_masters = make_plan(config, 0, ranks);
  config.precision.frozen = "bf16";
  const TrainPlan once = make_plan(config, 0, ranks);
  std::int64_t held = 0, masters = 0, copies = 0;  // bytes, as a pool rounds them
  const auto pooled = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
  for (const TrainPlan::Unit& unit : once.units) {
    CHECK(unit.has_master != unit.is_frozen);
    if (!unit.is_frozen) continue;
    held += pooled(2 * unit.layout->held_elems());
    masters += pooled(4 * unit.layout->held_elems());
    copies += param == "bf16" ? pooled(2 * unit.layout->held_elems()) : 0;
  }
  CHECK(once.at_peak.at("frozen") == held);
  CHECK(with_masters.at_peak.at("master") - once.at_peak.at("master") == masters);
  CHECK(with_masters.persistent_bytes - once.persistent_bytes == masters + copies - held);
  CHECK(once.at_peak.at("grad_shard") == with_masters.at_peak.at("grad_shard"));
  CHECK(once.at_peak.at("moments") == with_masters.at_peak.at("moments"));
}

TEST_CASE("parameters that a pattern freezes are a unit beside those that are trained") {
  Config config = frozen_config(false, "f32");
  std::map<std::string, bool> is_frozen;
  for (const TrainPlan::Unit& unit : make_plan(config, 0, 1).units) is_frozen[unit.name] = unit.is_frozen;
  CHECK(is_frozen == std::map<std::string, bool>{{"root", false},
                                                 {"root.frozen", true},
                                                 {"blocks.0", false},
                                                 {"blocks.0.frozen", true},
                                                 {"blocks.1", false},
                                                 {"blocks.1.frozen", true},
                                                 {"blocks.2", false}});
  config.train.frozen = {"blocks.1"};
  is_frozen.clear();
  for (const TrainPlan::Unit& unit : make_plan(config, 0, 1).units) is_frozen[unit.name] = unit.is_frozen;
  CHECK(is_frozen.size() == 4);
  CHECK(is_frozen.at("blocks.1"));
  const auto message = [&](std::vector<std::string> patterns) {
    config.train.frozen = std::move(patterns);
    return message_of([&] { make_plan(config, 0, 1); });
  };
  CHECK_THAT(message({"blocks.7"}), Contains("train.frozen: \"blocks.7\" matches no parameter"));
  CHECK_THAT(message({"*"}), Contains("train.frozen leaves nothing to train"));
}

TEST_CASE("an evaluation in full precision casts frozen weights, and training goes on in bf16") {
  Config config = frozen_config(true, "bf16");
  choose_layout(config, GENERATE("flat", "zero-copy", "small whole"));
  config.precision.validation = "f32";
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  const TempDir temp;
  const TinyOptions options{.ranks = 2, .steps = 3, .resume = rounded_start(config, temp.path())};
  config.precision.frozen = "f32";
  const TinyResult with_masters = train_tiny(config, options);
  config.precision.frozen = "bf16";
  CHECK(is_same(train_tiny(config, options), with_masters));
}

TEST_CASE("host and disk keep no frozen weights that are held once") {
  Config config = frozen_config(true, "bf16");
  const TempDir temp;
  config.offload.weights = GENERATE("host", "disk");
  if (config.offload.weights == "disk") config.offload.weights += ":" + temp.path();
  const std::string start = rounded_start(config, temp.path() + "/saved");
  const TinyOptions options{.ranks = 2, .steps = 2, .resume = start};
  config.precision.frozen = "f32";
  const TinyResult with_masters = train_tiny(config, options);
  config.precision.frozen = "bf16";
  CHECK(is_same(train_tiny(config, options), with_masters));
  const TrainPlan plan = make_plan(config, 0, 2);
  CHECK(plan.host_bytes + std::accumulate(plan.disk_bytes.begin(), plan.disk_bytes.end(), std::int64_t{0},
                                          [](auto sum, const auto& disk) { return sum + disk.second; }) <
        plan.at_peak.at("frozen") / 4);
}

TEST_CASE("scopes read and write frozen weights that are held once, whole or on one rank, rounded to bf16") {
  const UnshardOptions options{.only_rank = GENERATE(std::optional<int>(), std::optional<int>(1))};
  const int ranks = 2;
  const auto values = on_ranks(ranks, [&](World& world) {
    FrozenRun run(world, true);
    {
      const UnshardScope scope(run.runtime, {kFrozenUnit}, options);
      const Buffer weight = scope.value(run.model.layers[1]->weight);
      run.context.launch({"write", {}, {weight}}, [weight](ExecContext&) {
        for (std::int64_t i = 0; i < weight.elems; ++i) weight.as<float>()[i] = 1.0f + static_cast<float>(i) * 0x1p-9f;
      });
    }
    return run.weights()[3];
  });
  for (const std::vector<float>& rank : values)
    for (std::size_t i = 0; i < rank.size(); ++i)
      CHECK(rank[i] == static_cast<float>(BFloat16(1.0f + static_cast<float>(i) * 0x1p-9f)));
}

TEST_CASE("the state by name has frozen weights in f32, and loads them into what is held in bf16") {
  const bool is_whole = GENERATE(true, false);
  const auto values = on_ranks(2, [&](World& world) {
    FrozenRun from(world, false), to(world, true, {.seed = 7});
    const StateByName state = state_by_name(from.state(world), {.whole = is_whole, .on_host = true});
    to.runtime.executor().set_seed(99, true);
    load_by_name(to.state(world), state);
    const StateByName back = state_by_name(to.state(world));
    const Buffer piece = back.find("layer1.weight")->pieces.front().data;
    Arrays all = to.weights();
    all.emplace_back(piece.as<float>(), piece.as<float>() + piece.elems);
    all.push_back(from.weights()[3]);
    return all;
  });
  std::vector<float> pieces;
  for (const Arrays& rank : values) {
    const std::vector<float>& wanted = rank.back();
    REQUIRE(wanted.size() == rank[3].size());
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(rank[3][i] == static_cast<float>(BFloat16(wanted[i])));
    pieces.insert(pieces.end(), rank[rank.size() - 2].begin(), rank[rank.size() - 2].end());
  }
  CHECK(pieces == values[0][3]);
}

TEST_CASE(
    "a checkpoint without frozen weights is loaded beside those that are there, and is refused by who trains them") {
  const bool is_held_once = GENERATE(true, false);
  const TempDir temp;
  const auto messages = on_ranks(2, [&](World& world) {
    const std::string folder = temp.path() + "/step-2";
    Arrays saved;
    {
      FrozenRun run(world, is_held_once);
      for (int step = 1; step <= 2; ++step) {
        run.micro_batch(step);
        run.optimizer->step(1e-2f, step);
      }
      save(run.state(world), temp.path(), {.step = 2, .attributes = {{"a", "b"}}, .with_frozen = false});
      saved = run.weights();
    }
    FrozenRun again(world, is_held_once);
    const CheckpointInfo info = load(again.state(world), folder);
    std::string problem = again.weights() == saved ? "" : "other weights";
    if (info.with_frozen || info.attributes != std::map<std::string, std::string>{{"a", "b"}})
      problem += " other facts";
    ChainRun trains(world);
    return problem + message_of([&] { load({world, trains.runtime.executor(), *trains.optimizer}, folder); });
  });
  for (const std::string& message : messages)
    CHECK_THAT(message,
               Catch::Matchers::StartsWith("the checkpoint is of another model: 6 tensors differ: layer1.weight "
                                           "(master) is not saved"));
}

TEST_CASE("a model whose frozen weights are held once takes copies of another one's, and no averages") {
  const auto values = on_ranks(2, [](World& world) {
    FrozenRun from(world, false);
    Chain copy;
    ShardedRuntime runtime(from.context, world, in_tests(FrozenRun::with(true, {})));
    shard_module(copy, runtime, Units::block, {}, [](const Module&) { return UnitPolicy{.is_frozen = true}; });
    copy_weights(from.runtime.executor(), runtime.executor());
    Arrays all = {from.weights()[3]};
    runtime.executor().read_full(kFrozenUnit, [&](const Parameter& parameter, const float* read) {
      all.emplace_back(read, read + parameter.numel());
    });
    const std::string message = message_of([&] { copy_weights(from.runtime.executor(), runtime.executor(), 0.5f); });
    return std::pair(all, message);
  });
  for (const auto& [all, message] : values) {
    for (std::size_t i = 0; i < all[0].size(); ++i) CHECK(all[1][i] == static_cast<float>(BFloat16(all[0][i])));
    CHECK_THAT(message, Contains("no f32 masters to blend of root"));
  }
}

TEST_CASE("weights go to the host in pieces, which one rank takes from where they lie") {
  struct Wide : Layer<Wide> {
    Tensor forward(const Tensor& x) { return linear(x, weight, nullptr); }
    static float value(std::int64_t i) { return static_cast<float>(i % 251) / 256; }
    Parameter& weight = add_parameter("weight", {1100, 1000}, {.function = value}, true);
  };
  const bool is_frozen = GENERATE(true, false);
  const int ranks = GENERATE(1, 2);
  const auto wrong = on_ranks(ranks, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Context context(*device);
    Wide model;
    ShardedRuntime runtime(context, world, {.zero_copy = false, .frozen_dtype = DType::bf16});
    shard_module(model, runtime, Units::model, {}, [&](const Module&) { return UnitPolicy{.is_frozen = is_frozen}; });
    device->memory().reset_peak();
    const std::int64_t before = device->memory().peak_bytes(), elems = model.weight.numel();
    std::vector<std::string> problems;
    const auto expect = [&](bool is_so, const char* what) {
      if (!is_so) problems.emplace_back(what);
    };
    std::int64_t next = 0, most = 0, different = 0;
    runtime.executor().read_pieces(0, [&](const Parameter&, const Executor::Piece& piece) {
      expect(piece.first == next, "a piece is not where the last one ended");
      for (std::int64_t i = 0; i < piece.count; ++i)
        different += piece.values[i] != Wide::value(piece.first + i) ? 1 : 0;
      next += piece.count;
      most = std::max(most, piece.count);
    });
    expect(next == elems, "elements are missing");
    expect(different == 0, "values are others");
    expect(most == (is_frozen ? 1 << 20 : elems), "other pieces");
    const std::int64_t held = is_frozen ? 2 : 4;
    const std::int64_t taken = device->memory().peak_bytes() - before;
    if (taken != (ranks == 1 ? 0 : held * elems)) problems.push_back(fmt::format("{} bytes were taken", taken));
    runtime.executor().read_full(0, [&](const Parameter&, const float* values) {
      for (std::int64_t i = 0; i < elems; ++i) different += values[i] != Wide::value(i) ? 1 : 0;
    });
    expect(different == 0, "the whole has other values");
    std::vector<float> all;
    for (std::int64_t i = 0; i < elems; ++i) all.push_back(Wide::value(i));
    const std::string line = fmt::format("weight {:016x}\n", XXH3_64bits(all.data(), 4 * all.size()));
    expect(save_weights(runtime.executor()) == fmt::format("{:016x}", XXH3_64bits(line.data(), line.size())),
           "another hash");
    return problems;
  });
  for (const auto& problems : wrong) CHECK(problems == std::vector<std::string>{});
}

TEST_CASE("frozen weights are held in no dtype but bf16") {
  const auto messages =
      on_ranks(1, [](World& world) { return message_of([&] { ChainRun run(world, {.frozen_dtype = DType::f32}); }); });
  CHECK_THAT(messages[0], Contains("frozen weights are to be held once in f32"));
}

}  // namespace zs::test::frozen_held_test
