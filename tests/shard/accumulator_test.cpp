#include <catch2/catch.hpp>

#include <map>
#include <numeric>

#include "model/train/config/config_offload.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/shard/partial_micro_batch.h"
#include "tests/shard/residence_run.h"
#include "tests/shard/scheme_cases.h"
#include "tests/skip.h"

namespace zs::test::accumulator_test {
namespace {

using Bytes = std::map<std::string, std::int64_t>;

/// What the host has of what accumulates, but for the root, with which backward begins, and the last block: whole
/// gradients in f32, or sums over so many ranks of what is reduced in each micro-batch.
Bytes accumulated(const TrainPlan& plan, const Config& config, const std::string& scheme, int ranks) {
  const bool is_deterministic = config.train.deterministic;
  if (config.train.global_batch / config.train.micro_batch == ranks) return {};
  const bool is_whole =
      !is_deterministic && (scheme == "zero1" || scheme == "shard_grad_op" || scheme.find("once") != scheme.npos);
  int cut = 0;  // of sums
  if (scheme == "nested" && !is_deterministic) cut = ranks / 2;
  if (scheme == "nested small" && !is_deterministic) cut = 2;
  if ((scheme == "ddp" || scheme == "hsdp") && is_deterministic && ranks > 1) cut = ranks;
  if (!is_whole && cut == 0) return {};
  // Of one rank the first micro-batch's gradient is the master's, where it can be.
  if (ranks == 1 && config.precision.reduce == "f32" && !plan.units.front().layout->is_interleaved()) return {};
  std::int64_t elems = 0;
  for (std::size_t i = 1; i + 1 < plan.units.size(); ++i) elems += plan.units[i].layout->full_elems();
  return {{is_whole ? "full_grad" : "grad_sum", elems / (is_whole ? 1 : cut) * size_of(DType::f32)}};
}

const std::vector<std::string>& accumulating_schemes() {
  static const std::vector<std::string> names = {"zero1",        "zero3 once", "shard_grad_op", "nested", "nested once",
                                                 "nested small", "hsdp",       "ddp",           "zero3"};
  return names;
}

}  // namespace

TEST_CASE("0-19: what accumulates on the host is what the device would have, in every scheme and layout, as planned",
          "[residence]") {
  const int ranks = GENERATE(1, 2, 4);
  const std::size_t layout = GENERATE(range(0, 5));
  std::size_t number = layout + static_cast<std::size_t>(ranks);
  for (const std::string& name : accumulating_schemes()) {
    const SchemeOptions scheme = scheme_of(name, ranks);
    if ((scheme.group_size > 0 && ranks < 4) || is_thinned_out()) continue;
    Config config = tiny_config();
    choose_scheme(config, scheme);
    const std::string& cut = layout_names()[layout];
    if (cut != "zero-copy" || scheme.strategy != Strategy::ddp) choose_layout(config, cut);
    config.train.deterministic = ++number % 2 == 0 || name == "ddp" || name == "hsdp";
    if (number % 3 == 0) config.precision.param = config.precision.reduce = "bf16";
    if (number % 4 == 0) config.shard.prefetch = 0;
    for (const int micro_batches : {4, 1}) {
      config.train.global_batch = ranks * micro_batches;
      CAPTURE(name, cut, micro_batches, config.train.deterministic);
      const TrainPlan plan = check_same(config, with_host(config, "accumulator"), {.ranks = ranks, .steps = 2});
      CHECK(plan.host_by_kind == accumulated(plan, config, name, ranks));
      const bool is_refused = !accumulates_gradients(config);
      if (is_refused) CHECK(plan.host_bytes == 0);
    }
  }
}

TEST_CASE("0-19: between micro-batches the device has what accumulates of the ends alone", "[residence]") {
  Config config = tiny_config();
  config.model.layers = 8;
  config.train.global_batch = 2 * 4;
  config.train.deterministic = false;
  choose_scheme(config, scheme_of("zero3 once", 2));
  const TrainPlan usual = make_plan(config, 0, 2), plan = make_plan(with_host(config, "accumulator"), 0, 2);
  const std::int64_t block = plan.units[1].layout->full_elems() * size_of(DType::f32);
  CHECK(plan.host_bytes == 7 * block);
  // The last block's, its neighbour's on the way to the host, the next one's from there and the one that is filled.
  CHECK(usual.step_peak_bytes - plan.step_peak_bytes >= (8 - 4) * block);
  Config partly = with_host(config, "accumulator");
  partly.offload.resident_units = {.value = 3};  // the root's would not move anyway
  CHECK(make_plan(partly, 0, 2).host_bytes == 5 * block);
}

TEST_CASE("0-19: what accumulates goes with all else that the host keeps", "[residence]") {
  const int ranks = GENERATE(1, 2, 4);
  Config config = tiny_config();
  config.train.global_batch = ranks * 4;
  config.train.deterministic = false;
  config.train.recompute = {"block"};
  std::size_t number = 0;
  for (const char* const kept : {"gradients and accumulator", "weights, gradients, accumulator and moments",
                                 "accumulator and moments", "accumulator and activations"}) {
    const std::string name = ++number == 2 && ranks == 4 ? "nested" : number % 2 == 0 ? "zero3 once" : "zero1";
    choose_scheme(config, scheme_of(name, ranks));
    config.precision.param = number > 2 ? "bf16" : "f32";
    check_alike(config, kept, {.ranks = ranks, .steps = 3});
  }
}

TEST_CASE("what accumulates on the host is the same whatever runs late", "[residence]") {
  const std::string name = GENERATE(as<std::string>{}, "zero3 once", "nested");
  const auto seed = GENERATE(std::uint64_t{5}, std::uint64_t{6});
  Config config = tiny_config();
  config.train.global_batch = 12;
  config.train.deterministic = false;
  choose_scheme(config, scheme_of(name, 4));
  choose_layout(config, seed == 5 ? "flat" : "last dim");
  const TinyResult usual = train_tiny(config, {.ranks = 4, .is_calm = true});
  const TinyResult run = train_tiny(with_host(config, "accumulator"), {.ranks = 4, .perturb_seed = seed});
  CHECK(run.losses == usual.losses);
  CHECK(run.weights == usual.weights);
}

namespace {

std::int64_t device_bytes(const ChainRun& chain, const std::string& label) {
  const auto& live = chain.device->memory().live_by_label();
  const auto found = live.find(label);
  return found == live.end() ? 0 : found->second;
}

/// Weights after three steps of three micro-batches, the middle one disturbed; behind them what is left on the device
/// and on the host.
template <class Disturb>
auto disturbed(int ranks, const std::string& name, bool on_host, const Disturb& disturb) {
  ShardOptions options{.scheme = scheme_of(name, ranks)};
  options.residence.has_accumulators_on_host = on_host;
  return on_ranks(ranks, [&](World& world) {
    ChainRun chain(world, options);
    std::int64_t host = 0;
    for (int step = 0; step < 3; ++step) {
      chain.micro_batch(step, false);
      if (step == 1) disturb(chain);
      chain.micro_batch(step + 3, false);
      chain.micro_batch(step + 6);
      chain.optimizer->step(0.1f);
      chain.device->synchronize();
      const std::int64_t now = chain.device->pinned_memory().counter().live_bytes();
      if (step == 0) host = now;
      if (now != host) throw std::runtime_error("the host's memory has changed");
      if ((host > 0) != on_host) throw std::runtime_error("nothing moves, or what should not");
    }
    std::vector<std::vector<float>> all = chain.weights();
    for (const char* const label : {"full_grad", "grad_sum", "host_window"})
      all.push_back({static_cast<float>(device_bytes(chain, label))});
    return all;
  });
}

/// The micro-batch of a step that is begun and does not end.
Tensor begun(ChainRun& chain) {
  chain.runtime.begin_micro_batch(Mode::train, false);
  return chain.model.loss(chain_input(chain.context, 9), chain_targets(chain.context));
}

}  // namespace

TEST_CASE("0-19: abandoned micro-batches, evaluations and scopes in a step lose nothing of what is on the host",
          "[residence]") {
  const int ranks = GENERATE(2, 4);
  const auto [what, disturb] = GENERATE(table<std::string, std::function<void(ChainRun&)>>({
      {"nothing", [](ChainRun&) {}},
      {"a forward, abandoned",
       [](ChainRun& chain) {
         begun(chain);
         chain.runtime.abandon();
       }},
      {"a step, abandoned before the backward",
       [](ChainRun& chain) {
         begun(chain);
         chain.runtime.abandon_step();
         chain.micro_batch(1, false);
       }},
      {"a step, abandoned behind the backward",
       [](ChainRun& chain) {
         backward(begun(chain), 1.0f);
         chain.runtime.abandon_step();
         chain.micro_batch(1, false);
       }},
      {"a step, abandoned between micro-batches",
       [](ChainRun& chain) {
         chain.runtime.abandon_step();
         chain.micro_batch(1, false);
       }},
      {"an evaluation",
       [](ChainRun& chain) {
         const NoGradGuard no_grad(chain.context);
         chain.runtime.begin_micro_batch(Mode::eval, true);
         chain.model.loss(chain_input(chain.context, 9), chain_targets(chain.context));
         chain.runtime.end_micro_batch();
       }},
      {"a scope",
       [](ChainRun& chain) {
         std::vector<int> units(chain.runtime.executor().units().size());
         std::iota(units.begin(), units.end(), 0);
         const UnshardScope scope(chain.runtime, units);
       }},
  }));
  for (const std::string name : {"zero3 once", "zero1", "nested"}) {
    if (name == "nested" && ranks < 4) continue;
    CAPTURE(ranks, name, what);
    const auto usual = disturbed(ranks, name, false, [](ChainRun&) {});
    CHECK(disturbed(ranks, name, true, disturb) == usual);
  }
}

TEST_CASE("0-19: a unit whose backward does not run has its gradient reduced as it lies on the host", "[residence]") {
  const auto run = [](bool on_host, bool reduces_unused) {
    ShardOptions options{.scheme = scheme_of("zero3 once", 2)};
    options.residence.has_accumulators_on_host = on_host;
    options.schedule.reduces_unused = reduces_unused;
    return on_ranks(2, [&](World& world) {
      ChainRun chain(world, options);
      for (int step = 0; step < 2; ++step) {
        chain.micro_batch(step, false);
        chain.micro_batch(step + 3, false);
        chain.runtime.begin_micro_batch(Mode::train, true);
        decltype(chain.model.layers) none;
        std::swap(chain.model.layers, none);
        backward(chain.model.loss(chain_input(chain.context, step), chain_targets(chain.context)), 1.0f);
        std::swap(chain.model.layers, none);
        chain.runtime.end_micro_batch();
        chain.optimizer->step(0.1f);
      }
      return chain.weights();
    });
  };
  const auto usual = run(false, false);
  CHECK(run(true, false) == usual);
  CHECK(run(true, true) == usual);
}

TEST_CASE("0-19: what later micro-batches alone write of a gradient is not added to what came back", "[residence]") {
  const auto run = [](bool on_host) {
    ShardOptions options{.scheme = scheme_of("zero3 once", 2)};
    options.residence.has_accumulators_on_host = on_host;
    return on_ranks(2, [&](World& world) {
      ChainRun chain(world, options);
      for (int step = 0; step < 3; ++step) {
        partial_micro_batch(chain, false, false);
        chain.micro_batch(step, false);
        chain.micro_batch(step + 3);
        chain.optimizer->step(0.1f);
      }
      return chain.weights();
    });
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("0-19: units that reduce later, or have a residence of their own, keep what accumulates where each says",
          "[residence]") {
  const auto run = [](const std::vector<std::string>& kept) {
    return on_ranks(2, [&](World& world) {
      const ShardOptions options;
      ChainRun chain(world, options, [&](Chain& model, ShardedRuntime& target) {
        shard_module(model, target, Units::block, {}, [&](const Module& module) {
          const bool is_kept = std::find(kept.begin(), kept.end(), module.path()) != kept.end();
          return is_kept ? UnitPolicy{.residence = Residence{.has_accumulators_on_host = true}} : UnitPolicy{};
        });
      });
      for (int step = 0; step < 2; ++step) {
        for (int i = 0; i < 3; ++i) {
          std::optional<NoSync> no_sync;
          if (i < 2) no_sync.emplace(chain.runtime);
          chain.micro_batch(step * 3 + i, i == 2);
        }
        chain.optimizer->step(0.1f);
      }
      return std::pair(chain.weights(), chain.device->pinned_memory().counter().live_bytes());
    });
  };
  const auto none = run({}), one = run({"layer1"}), two = run({"layer0", "layer1"});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(one[rank].first == none[rank].first);
    CHECK(two[rank].first == none[rank].first);
    CHECK(none[rank].second == 0);
    CHECK(one[rank].second > 0);
    CHECK(two[rank].second == 2 * one[rank].second);
  }
}

}  // namespace zs::test::accumulator_test
