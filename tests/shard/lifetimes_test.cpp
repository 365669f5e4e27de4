// Modules, models and graphs that end in the wrong order, models that were moved, and ranks that begin differently.
#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>

#include "model/nn/batch_norm.h"
#include "model/nn/linear.h"
#include "model/nn/module_list.h"
#include "model/sharding/fully_shard.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/optimizers/sgd.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/reduction.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/stderr_of.h"

namespace zs::test::lifetimes_test {
namespace {

using Catch::Contains;

struct Net : Layer<Net> {
  Net() {
    fully_shard(in);
    fully_shard(out);
  }
  Linear& in = make_child<Linear>("in", 3, 4, LinearOptions{.init = {.normal_std = 0.5f}});
  BatchNorm& norm = make_child<BatchNorm>("norm", 4);
  Linear& out = make_child<Linear>("out", 4, 2, LinearOptions{.init = {.normal_std = 0.5f}});
  Tensor forward(const Tensor& x) { return out(norm(in(x))); }
};

/// A sharded model, whose parts may be ended in any order.
struct Parts {
  explicit Parts(World& of, const FullyShardOptions& options = {})
      : world(of),
        device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        model(std::make_unique<ShardedModel>(fully_shard(*net, context, world, options))) {}
  Tensor loss() { return mean((*net)(Tensor::from_host(context, {2, 3}, std::vector<float>{1, 2, 3, -1, 0, 2}))); }

  World& world;
  std::unique_ptr<Device> device;
  Context context;
  std::unique_ptr<Net> net = std::make_unique<Net>();
  std::unique_ptr<ShardedModel> model;
};

}  // namespace

TEST_CASE("a module that ends before its model leaves it nothing to stumble over") {
  const auto world = make_single_world({});
  Parts parts(*world);
  {
    auto micro_batch = parts.model->micro_batch();
    parts.loss().backward();
  }
  parts.net.reset();
  SECTION("without a further call") {}
  SECTION("a micro-batch is refused") {
    Sgd optimizer(*parts.model, {});
    optimizer.step(0.1f);
    CHECK_THAT(coded_message_of([&] { auto micro_batch = parts.model->micro_batch(); }),
               Contains("64: ") && Contains("norm.weight") && Contains("ended before its model"));
  }
  parts.model.reset();
}

TEST_CASE("a backward after the end of its module or its model is refused by a parameter's name") {
  const auto world = make_single_world({});
  Parts parts(*world);
  const bool is_of_module = GENERATE(true, false);
  CAPTURE(is_of_module);
  Tensor loss;
  const std::string message = coded_message_of([&] {
    {
      auto micro_batch = parts.model->micro_batch();
      loss = parts.loss();
      if (is_of_module) parts.net.reset();
      if (is_of_module) loss.backward();  // and the micro-batch is abandoned
      parts.loss().backward();
    }
    parts.model.reset();
    loss.backward();
  });
  CHECK_THAT(message, Contains("64: ") && Contains("has no owner any more"));
}

TEST_CASE("what refers to a model is refused, by its own name, after the model has ended") {
  const auto world = make_single_world({});
  Parts parts(*world);
  const auto message_after_the_end = [&](const std::function<void()>& body) {
    return coded_message_of([&] {
      parts.model.reset();
      body();
    });
  };
  const auto ended = Contains("after its model has ended");
  SECTION("an optimizer") {
    Sgd optimizer(*parts.model, {});
    CHECK_THAT(message_after_the_end([&] { optimizer.step(0.1f); }), Contains("64: step() of Sgd") && ended);
    CHECK_THAT(coded_message_of([&] { optimizer.skipped(); }), Contains("64: skipped() of Sgd") && ended);
  }
  SECTION("an optimizer in backward") {
    Sgd optimizer(*parts.model, {.clip = 0, .in_backward = true});
    CHECK_THAT(message_after_the_end([&] { optimizer.begin_step(0.1f); }), Contains("64: begin_step()") && ended);
  }
  SECTION("a micro-batch") {
    std::string message;
    const std::string printed = stderr_of([&] {
      message = coded_message_of([&] {
        auto micro_batch = parts.model->micro_batch();
        parts.loss().backward();
        parts.model.reset();
        micro_batch.end();
      });
    });
    CHECK_THAT(message, Contains("64: the end of a micro-batch") && ended);
    CHECK_THAT(printed, Contains("was still open when its runtime ended"));
  }
  SECTION("a micro-batch that an exception leaves") {
    stderr_of([&] {
      CHECK_THROWS_AS(
          [&] {
            auto micro_batch = parts.model->micro_batch();
            parts.model.reset();
            throw std::runtime_error("mine");
          }(),
          std::runtime_error);
    });
  }
  SECTION("a scope") {
    CHECK_THAT(coded_message_of([&] {
                 const UnshardScope scope(parts.model->runtime(), *parts.net);
                 parts.model.reset();
               }),
               Contains("64: the end of an UnshardScope") && ended);
  }
  SECTION("no synchronization") {
    {
      const NoSync guard(parts.model->runtime());
      parts.model.reset();
    }
    CHECK(parts.model == nullptr);
  }
  SECTION("a gather by hand") {
    const auto gather = parts.model->runtime().unshard(0);
    CHECK_THAT(message_after_the_end([&] { gather.wait(); }), Contains("64: a wait for an unshard") && ended);
  }
}

TEST_CASE("a tensor may outlive its context, and has no elements then") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Tensor kept, graph;
  {
    Context context(*device);
    kept = Tensor::zeros(context, {4}, DType::f32);
    kept.set_requires_grad();
    graph = kept * kept;
  }
  CHECK(device->memory().live_bytes() == 0);
  CHECK_THAT(coded_message_of([&] { kept.to_host(); }), Contains("64: a tensor, f32 (4)") && Contains("context"));
  CHECK_THAT(coded_message_of([&] { kept.buffer(); }), Contains("64: "));
}

TEST_CASE("a second thread in a context whose micro-batch is open is refused") {
  const auto world = make_single_world({});
  Parts parts(*world);
  const auto message_on_another = [&](const std::function<void()>& body) {
    std::string message;
    std::thread([&] { message = coded_message_of(body); }).join();
    return message;
  };
  const auto check_refused = [&](const char* call, const std::function<void()>& body) {
    CHECK_THAT(message_on_another(body), Contains("64: ") && Contains("another thread") && Contains(call));
  };
  {
    auto micro_batch = parts.model->micro_batch();
    const Tensor loss = parts.loss();
    check_refused("forward", [&] { (*parts.net)(loss); });
    check_refused("new tensor", [&] { parts.loss(); });
    check_refused("mine", [&] { parts.context.launch({"mine", {}, {}}, [](ExecContext&) {}); });
    loss.backward();
  }
  CHECK(message_on_another([&] { parts.context.launch({"mine", {}, {}}, [](ExecContext&) {}); }).empty());
  CHECK_THROWS_AS(
      [&] {
        auto micro_batch = parts.model->micro_batch();
        throw std::runtime_error("mine");
      }(),
      std::runtime_error);
  CHECK(message_on_another([&] { auto evaluation = parts.model->evaluation(); }).empty());
}

TEST_CASE("a model that was moved from is refused") {
  const auto world = make_single_world({});
  Parts parts(*world);
  const ShardedModel other = std::move(*parts.model);
  CHECK_THAT(coded_message_of([&] { auto micro_batch = parts.model->micro_batch(); }),
             Contains("64: ") && Contains("moved from"));
  CHECK_THAT(coded_message_of([&] { Sgd(*parts.model, {}); }), Contains("64: ") && Contains("moved from"));
}

TEST_CASE("ranks that shard a model differently are told so before they share memory") {
  const auto differing = GENERATE(0, 1, 2);
  CAPTURE(differing);
  const auto messages = on_ranks(2, [&](World& world) {
    FullyShardOptions options;
    if (world.rank() == 1 && differing == 0) options.shard.scheme.strategy = Strategy::ddp;
    if (world.rank() == 1 && differing == 1) options.shard.zero_copy = false;
    if (world.rank() == 1 && differing == 2) options.shard.checks_writes = true;
    return coded_message_of([&] { const Parts parts(world, options); });
  });
  for (const std::string& message : messages)
    CHECK_THAT(message, Contains("72: ") && Contains("rank 0 by strategy zero3") && Contains("rank 1 by"));
}

TEST_CASE("ranks whose models differ are told the first parameter that does, before they share memory") {
  struct Lists : Layer<Lists> {
    explicit Lists(std::int64_t width, int count, bool is_unit) {
      for (int i = 0; i < count; ++i) list.add(4, width);
      if (is_unit) fully_shard(list[0]);
    }
    ModuleList<Linear>& list = make_child<ModuleList<Linear>>("list");
  };
  const auto differing = GENERATE(0, 1, 2);
  CAPTURE(differing);
  const auto messages = on_ranks(2, [&](World& world) {
    const bool is_odd = world.rank() == 1;
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Context context(*device);
    Lists net(is_odd && differing == 0 ? 5 : 3, is_odd && differing == 1 ? 3 : 2, is_odd && differing == 2);
    return coded_message_of([&] { const ShardedModel model = fully_shard(net, context, world); });
  });
  const std::vector<std::string> words = {
      "rank 0 has list.0.weight (3, 4), rank 1 has list.0.weight (5, 4)",
      "rank 0 has no more parameters, rank 1 has list.2.weight (3, 4)",
      "rank 0 has list.0.weight (3, 4), rank 1 has list.0.weight (3, 4), of the unit list.0"};
  for (const std::string& message : messages)
    CHECK_THAT(message, Contains("72: ") && Contains(words[static_cast<std::size_t>(differing)]));
}

TEST_CASE("ranks that save into different folders, or different steps, are told so, and leave nothing") {
  const TempDir dir;
  const bool is_step = GENERATE(true, false);
  const auto messages = on_ranks(2, [&](World& world) {
    const Parts parts(world);
    Sgd optimizer(*parts.model, {});
    return coded_message_of([&] {
      save({world, parts.model->executor(), optimizer}, dir / (world.rank() == 0 || is_step ? "a" : "b"),
           {.step = is_step ? world.rank() + 1 : 1});
    });
  });
  for (const std::string& message : messages)
    CHECK_THAT(message, Contains("72: save() of") && Contains(is_step ? "a/step-2 here" : "b/step-1 here"));
  CHECK(dir.entries() == 0);
}

TEST_CASE("a parameter that is trained again within a micro-batch is a mistake of the caller's") {
  const auto world = make_single_world({});
  Parts parts(*world);
  for (const auto& parameter : parts.net->out.own_parameters()) parameter->set_trainable(false);
  CHECK_THAT(coded_message_of([&] {
               auto micro_batch = parts.model->micro_batch();
               const Tensor loss = parts.loss();
               for (const auto& parameter : parts.net->out.own_parameters()) parameter->set_trainable(true);
               loss.backward();
             }),
             Contains("64: ") && Contains("out.") && Contains("set_trainable()"));
}

TEST_CASE("checks_writes is refused where it could see nothing") {
  const auto world = make_single_world({});
  CHECK_THAT(coded_message_of([&] { Parts(*world, {.shard = {.checks_writes = true}}); }),
             Contains("64: ") && Contains("checks_writes sees no write to unit"));
  const Parts narrow(*world, {.shard = {.precision = {.param = DType::bf16}, .checks_writes = true}});
}

}  // namespace zs::test::lifetimes_test
