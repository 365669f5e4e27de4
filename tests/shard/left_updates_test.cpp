// Updates that an optimizer leaves for the next forward, where the host keeps what they need.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/train/plan/plan.h"
#include "runtime/shard/checkpoint/checkpoint_save.h"
#include "runtime/shard/checkpoint/state_by_name.h"
#include "runtime/shard/optimizers/adamw8bit.h"
#include "runtime/shard/optimizers/muon.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/optimizer_run.h"
#include "tests/shard/residence_run.h"

namespace zs::test::left_updates_test {
namespace {

/// Where in a plan's trace an op, on a unit, is enqueued, from the start of the step on.
std::size_t place_of(const TrainPlan& plan, const std::string& op, const std::string& unit = "") {
  const std::string end = unit.empty() ? "" : ":" + unit;
  const auto found = std::find_if(plan.trace.begin(), plan.trace.end(), [&](const TraceEntry& entry) {
    return entry.kind == TraceEntry::Kind::op && entry.op.name.starts_with(op) && entry.op.name.ends_with(end);
  });
  REQUIRE(found != plan.trace.end());
  return static_cast<std::size_t>(found - plan.trace.begin());
}

}  // namespace

TEST_CASE("each unit's update comes just before its first gather of the next step, and its window behind the last's") {
  Config config = tiny_config();
  config.precision.param = "bf16";
  config.train.global_batch = 4;
  config.offload.weights = config.offload.moments = "host";
  const TrainPlan plan = make_plan(config, {.rank = 0, .ranks = 2});
  const std::vector<int> order = plan.train_order.units(ExecOrder::Phase::forward);
  REQUIRE(std::ssize(order) == std::ssize(plan.units));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto unit_of = [&](std::size_t k) { return plan.units[static_cast<std::size_t>(order[k])].name; };
    CAPTURE(unit_of(i));
    const std::size_t update = place_of(plan, "adamw", unit_of(i)), gather = place_of(plan, "all_gather", unit_of(i)),
                      load = place_of(plan, "load_from_host", unit_of(i));
    CHECK(load < update);
    CHECK(update < gather);
    CHECK(plan.trace[update].phase == "optimizer");
    CHECK(plan.trace[gather].phase == "forward");
    if (i > 0) CHECK(place_of(plan, "all_gather", unit_of(i - 1)) < update);
    if (i > 0) CHECK(load < place_of(plan, "store_to_host", unit_of(i - 1)));
  }
}

TEST_CASE("an update for which ranks exchange comes behind its step, window after window, and others are left") {
  const std::string optimizer = GENERATE(as<std::string>{}, "muon", "adamw8bit");
  const int ranks = GENERATE(1, 2);
  Config config = trained_by(tiny_config(), optimizer);
  config.precision.param = "bf16";
  config.train.global_batch = 4;
  config.offload.weights = config.offload.moments = "host";
  const TrainPlan plan = make_plan(config, {.rank = 0, .ranks = ranks});
  const std::size_t end_of_step = place_of(plan, "count_skipped");
  std::string last;  // whose update was one of the step's
  for (const TrainPlan::Unit& unit : plan.units) {
    CAPTURE(optimizer, ranks, unit.name, last);
    const bool is_left = ranks == 1 || (optimizer == "muon" && !unit.name.starts_with("blocks."));
    const std::size_t update = place_of(plan, optimizer, unit.name);
    CHECK(is_left == (update < end_of_step));
    if (is_left) continue;
    const std::size_t load = place_of(plan, "load_from_host", unit.name);
    CHECK(load < update);
    CHECK(update < place_of(plan, "store_to_host", unit.name));
    if (!last.empty()) CHECK(load < place_of(plan, "store_to_host", last));
    last = unit.name;
  }
  CHECK(last.empty() == (ranks == 1));
}

TEST_CASE("updates that are left go by what was so at their step, and are there for whoever looks") {
  const int ranks = GENERATE(1, 2);
  const bool is_zero_copy = GENERATE(false, true);
  const Make make =
      GENERATE(maker_of<AdamW>(AdamWConfig{}), maker_of<Muon>(MuonConfig{}), maker_of<AdamW8bit>(AdamWConfig{}));
  const auto run = [&](const Residence& residence, DType param) {
    ShardOptions options{.zero_copy = is_zero_copy};
    options.precision.param = param;
    options.residence = residence;
    return on_ranks(ranks, [&](World& world) {
      ChainRun chain(world, options);
      chain.optimizer.reset();
      auto optimizer = make(chain.runtime.executor());
      std::vector<std::vector<float>> all;
      const auto look = [&](const std::vector<std::vector<float>>& values) {
        all.insert(all.end(), values.begin(), values.end());
      };
      const TrainingState state{world, chain.runtime.executor(), *optimizer};
      chain.micro_batch(0);
      optimizer->step(0.1f);
      look(chain.weights());
      chain.micro_batch(1);
      optimizer->step(0.2f);
      chain.model.layers[1]->weight.set_trainable(false);  // behind its update
      chain.micro_batch(2);
      chain.model.layers[1]->weight.set_trainable(true);  // before it would be updated
      optimizer->step(0.05f);
      const StateOptions options_of{.whole = true, .on_host = true, .with_optimizer = optimizer->has_plain_state()};
      for (const HeldTensor& held : state_by_name(state, options_of).tensors) {
        const Buffer& data = held.pieces.at(0).data;
        all.emplace_back(data.as<float>(), data.as<float>() + data.elems);
      }
      chain.micro_batch(3);
      optimizer->step(0.1f);
      {
        const UnshardScope scope(chain.runtime, {0}, {.writes_back = true});
        const Buffer head = scope.value(chain.model.head);
        chain.context.launch({"halve", {head}, {head}}, [&kernels = chain.context.kernels(), head](ExecContext& exec) {
          kernels.scale(exec, head, head, 0.5f);
        });
      }
      chain.micro_batch(4);
      optimizer->set_scalars(0.1f, 5);
      optimizer->update();
      optimizer->set_scalars(7.0f, 6);  // of a step to come
      look(chain.weights());
      chain.micro_batch(5);
      optimizer->step(0.1f);
      optimizer.reset();
      look(chain.weights());
      return all;
    });
  };
  CAPTURE(ranks, is_zero_copy);
  CHECK(run({.has_moments_on_host = true, .has_gradients_on_host = true}, DType::f32) == run({}, DType::f32));
  CHECK(run({.has_masters_on_host = true, .has_moments_on_host = true}, DType::bf16) == run({}, DType::bf16));
}

TEST_CASE("a step that fails leaves no update for later: the weights are those before it") {
  const auto outcomes = on_ranks(2, [&](World& world) {
    ShardOptions options;
    options.residence.has_moments_on_host = true;
    ChainRun chain(world, options);
    chain.micro_batch(0);
    chain.optimizer->step(0.1f);
    const auto before = chain.weights();
    std::string message;
    try {
      chain.micro_batch(1);
      chain.optimizer->step(world.rank() == 0 ? 0.1f : 0.2f);
      chain.device->synchronize();
    } catch (const Error& mismatch) {
      message = mismatch.what();
    }
    return std::pair(message, chain.weights() == before);
  });
  for (const auto& [message, is_untouched] : outcomes) {
    CHECK_THAT(message, Catch::Contains("the ranks disagree on the learning rate"));
    CHECK(is_untouched);
  }
}

TEST_CASE("memory that is taken between steps is in the peak of the step behind it, and of no other") {
  const Config config = tiny_config();
  const auto world = make_single_world({.timeout_s = 60});
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Session session(*device, *world, config);
  const auto peak_of = [&](std::int64_t step) {
    session.enqueue_step(step, 1e-2f, tiny_samples(config), 0);
    return session.finish_step().peak_bytes;
  };
  const std::int64_t usual = peak_of(1), live = device->memory().live_bytes();
  { const Memory taken = device->pool().acquire(usual, device->stream(StreamRole::compute), "update"); }
  CHECK(peak_of(2) == live + usual);
  CHECK(peak_of(3) == usual);
}

TEST_CASE("a checkpoint of what the host keeps is copied from there: nothing comes to the device for it") {
  Config config = trained_by(tiny_config(), GENERATE(as<std::string>{}, "adamw", "muon", "adamw8bit"));
  config.precision.param = "bf16";
  config.offload.weights = config.offload.moments = "host";
  config.checkpoint.background = true;
  const auto world = make_single_world({.timeout_s = 60});
  const TrainPlan plan = make_plan(config, 0, 1);
  const auto device = plan.create_device({.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Session session(*device, *world, config);
  plan.apply_order(session.runtime());
  session.enqueue_step(1, 1e-2f, tiny_samples(config), 0);
  session.finish_step();
  session.runtime().executor().deferred_updates().settle();
  const TempDir folder;
  device->trace().clear();
  device->trace().start();
  BackgroundSave save({*world, session.runtime().executor(), session.optimizer()}, folder.path(), {.step = 1}, nullptr,
                      session.save_memory());
  device->trace().stop();
  std::vector<std::string> moved;
  for (const TraceEntry& entry : device->trace().entries())
    if (entry.kind == TraceEntry::Kind::op && entry.stream == StreamRole::offload) moved.push_back(entry.op.name);
  CHECK(moved.empty());
  CHECK_FALSE(save.finish().empty());
}

}  // namespace zs::test::left_updates_test
