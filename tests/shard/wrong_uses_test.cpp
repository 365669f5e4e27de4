// What a user may do wrong, at one rank and at three: a UsageError on every rank that names it, and nobody waits.
#include <catch2/catch.hpp>

#include <functional>
#include <limits>

#include "model/nn/attention.h"
#include "model/nn/batch_norm.h"
#include "model/nn/conv.h"
#include "model/nn/dropout.h"
#include "model/nn/linear.h"
#include "model/nn/module_list.h"
#include "model/sharding/fully_shard.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/optimizers/adamw8bit.h"
#include "runtime/shard/optimizers/sgd.h"
#include "runtime/shard/placement/gather_format.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"

namespace zs::test::wrong_uses_test {
namespace {

using Catch::Contains;

struct Net : Layer<Net> {
  Linear& first = make_child<Linear>("first", 4, 6);
  Linear& second = make_child<Linear>("second", 6, 3);
  Tensor forward(const Tensor& x) { return second(relu(first(x))); }
};

struct Forgetful : Layer<Forgetful> {
  Linear inner{"inner", 4, 4};  // never registered
  Parameter& weight = add_parameter("weight", {4, 4}, {}, true);
  Tensor forward(const Tensor& x) { return inner(linear(x, weight, nullptr)); }
};

struct Twins : Layer<Twins> {
  Parameter& one = add_parameter("weight", {4, 4}, {}, true);
  Parameter& other = add_parameter("weight", {4, 4}, {}, true);
  Tensor forward(const Tensor& x) { return linear(x, one, nullptr); }
};

struct Rank {
  explicit Rank(World& in)
      : world(in),
        device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device) {
    fully_shard(net.first);
    model.emplace(fully_shard(net, context, world));
    optimizer.emplace(model->executor(), AdamWConfig{});
  }
  Tensor x(std::int64_t rows = 2, std::int64_t width = 4, DType dtype = DType::f32) {
    return Tensor::from_host(context, {rows, width}, std::vector<float>(static_cast<std::size_t>(rows * width), 0.5f),
                             dtype);
  }
  Tensor loss() { return mean(net(x())); }
  void accumulate(bool is_last = true) {
    auto micro_batch = model->micro_batch({.last = is_last});
    loss().backward();
  }
  TrainingState state() { return {world, model->executor(), *optimizer}; }

  World& world;
  std::unique_ptr<Device> device;
  Context context;
  Net net;
  std::optional<ShardedModel> model;
  std::optional<AdamW> optimizer;
};

struct WrongUse {
  const char* name;
  std::vector<std::string> words;
  std::function<void(Rank&)> body;
};

std::vector<WrongUse> of_sharding() {
  return {
      {"shard a model twice", {"sharded already"}, [](Rank& r) { (void)fully_shard(r.net, r.context, r.world); }},
      {"shard a part after the whole", {"\"second\"", "before"}, [](Rank& r) { fully_shard(r.net.second); }},
      {"shard a part twice",
       {"twice", "\"second\""},
       [](Rank&) {
         Net net;
         fully_shard(net.second);
         fully_shard(net.second);
       }},
      {"call a part whose model is not sharded",
       {"\"first\"", "fully_shard(model, context, world)"},
       [](Rank& r) {
         Net net;
         fully_shard(net.first);
         net(r.x());
       }},
      {"a pattern that no unit has",
       {"blocks.*", "first"},
       [](Rank& r) {
         Net net;
         fully_shard(net.first);
         (void)fully_shard(net, r.context, r.world, {.policies = {{"blocks.*", UnitPolicy{}}}});
       }},
      {"two parameters of one name",
       {"weight", "different paths"},
       [](Rank& r) {
         Twins net;
         (void)fully_shard(net, r.context, r.world);
       }},
      {"a child that is not registered",
       {"inner.weight", "add_child"},
       [](Rank& r) {
         Forgetful net;
         ShardedModel model = fully_shard(net, r.context, r.world);
         auto micro_batch = model.micro_batch();
         net(r.x());
       }},
      {"a switch of a module that is no unit",
       {"\"second\"", "no unit"},
       [](Rank& r) { r.model->set_requires_gradient_sync(r.net.second, false); }},
      {"a switch within a micro-batch",
       {"set_reshard_after_forward", "micro-batch"},
       [](Rank& r) {
         auto micro_batch = r.model->micro_batch();
         r.model->set_reshard_after_forward(r.net, false);
       }},
      {"read a weight within a micro-batch",
       {"micro-batch"},
       [](Rank& r) {
         auto micro_batch = r.model->micro_batch();
         const UnshardScope scope(r.model->runtime(), r.net);
       }},
      {"broadcast from a rank that is not", {"rank 9"}, [](Rank& r) { broadcast_parameters(r.model->runtime(), 9); }},
  };
}

std::vector<WrongUse> of_micro_batches() {
  return {
      {"forward outside of a micro-batch", {"micro_batch()"}, [](Rank& r) { r.loss(); }},
      {"two micro-batches at once",
       {"already running"},
       [](Rank& r) {
         auto micro_batch = r.model->micro_batch();
         auto other = r.model->micro_batch();
       }},
      {"a micro-batch without backward",
       {"without a backward"},
       [](Rank& r) {
         auto micro_batch = r.model->micro_batch();
         r.loss();
         micro_batch.end();
       }},
      {"an end twice",
       {"ended twice"},
       [](Rank& r) {
         auto micro_batch = r.model->micro_batch();
         r.loss().backward();
         micro_batch.end();
         micro_batch.end();
       }},
      {"a backward behind the end",
       {"behind the end"},
       [](Rank& r) {
         auto micro_batch = r.model->micro_batch();
         const Tensor loss = r.loss();
         loss.backward();
         micro_batch.end();
         micro_batch.backward(loss);
       }},
      {"a backward twice",
       {"already run through op", "once"},
       [](Rank& r) {
         auto micro_batch = r.model->micro_batch();
         const Tensor loss = r.loss();
         loss.backward();
         loss.backward();
       }},
      {"a backward of an evaluation",
       {"depends on nothing that wants a gradient", "evaluation"},
       [](Rank& r) {
         auto evaluation = r.model->evaluation();
         r.loss().backward();
       }},
      {"a backward of a vector",
       {"a scalar", "sum or average"},
       [](Rank& r) {
         auto micro_batch = r.model->micro_batch();
         r.net(r.x()).backward();
       }},
  };
}

std::vector<WrongUse> of_steps() {
  return {
      {"a step first", {"nothing to do"}, [](Rank& r) { r.optimizer->step(0.1f); }},
      {"a step twice",
       {"nothing to do"},
       [](Rank& r) {
         r.accumulate();
         r.optimizer->step(0.1f);
         r.optimizer->step(0.1f);
       }},
      {"a step within a micro-batch",
       {"within a micro-batch"},
       [](Rank& r) {
         auto micro_batch = r.model->micro_batch();
         r.loss().backward();
         r.optimizer->step(0.1f);
       }},
      {"a step without a last micro-batch",
       {"last", "is_last = true"},
       [](Rank& r) {
         r.accumulate(false);
         r.optimizer->step(0.1f);
       }},
      {"save with gradients",
       {"save()", "optimizer"},
       [](Rank& r) {
         const TempDir folder;
         r.accumulate();
         save(r.state(), folder.path(), {.step = 1});
       }},
      {"save another model's optimizer",
       {"2 units and 51 elements", "the optimizer adamw of another", "3 units"},
       [](Rank& r) {
         struct Wide : Net {
           Linear& third = make_child<Linear>("third", 4, 6);
         } net;
         fully_shard(net.first), fully_shard(net.second);
         ShardedModel model = fully_shard(net, r.context, r.world);
         AdamW optimizer(model.executor(), AdamWConfig{});
         const TempDir folder;
         save({r.world, r.model->executor(), optimizer}, folder.path(), {.step = 1});
       }},
      {"load within an evaluation",
       {"load() within an evaluation"},
       [](Rank& r) {
         auto evaluation = r.model->evaluation();
         load(r.state(), "nowhere");
       }},
      {"save a step below 0",
       {"save() of step -1"},
       [](Rank& r) {
         const TempDir folder;
         save(r.state(), folder.path(), {.step = -1});
       }},
      {"samples counted from below 0", {"-1"}, [](Rank& r) { auto m = r.model->micro_batch({.first_sample = -1}); }},
  };
}

std::vector<WrongUse> of_numbers() {
  const auto adamw = [](AdamWConfig config) { return [config](Rank& r) { AdamW(r.model->executor(), config); }; };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  return {
      {"a beta of AdamW", {"AdamW: a beta of 1.5"}, adamw({.beta1 = 1.5f})},
      {"an eps of AdamW", {"AdamW: an eps of -1"}, adamw({.eps = -1})},
      {"no eps of AdamW", {"AdamW: an eps of 0"}, adamw({.eps = 0})},
      {"a weight decay", {"AdamW: a weight decay of nan"}, adamw({.weight_decay = kNan})},
      {"a norm to clip to", {"AdamW: clipping to a norm of -1"}, adamw({.clip = -1})},
      {"a group's learning rate", {"AdamW: the group \"*.bias\"", "-2"}, adamw({.groups = {{"*.bias", -2}}})},
      {"a beta of 8 bits", {"AdamW8bit: a beta of 1"}, [](Rank& r) { AdamW8bit(r.model->executor(), {.beta2 = 1}); }},
      {"a decay of SGD",
       {"Sgd: a weight decay of -1"},
       [](Rank& r) { Sgd(r.model->executor(), {.weight_decay = -1}); }},
      {"heads that do not divide the width",
       {"width 4 is not a multiple of 3 heads", "head_dim"},
       [](Rank&) { Attention("a", {.width = 4, .heads = 3}); }},
      {"no heads", {"0 heads"}, [](Rank&) { Attention("a", {.width = 4, .heads = 0}); }},
      {"a window below 0", {"a window of -1"}, [](Rank&) { Attention("a", {.width = 4, .heads = 2, .window = -1}); }},
      {"a layer of negative size", {"dim 1 is -1"}, [](Rank&) { Linear("l", -1, 4); }},
      {"too few values",
       {"3 values for a tensor (2, 2)"},
       [](Rank& r) {
         Tensor::from_host(r.context, {2, 2}, std::vector<float>(3));
       }},
      {"a view of another size",
       {"reshape of (2, 4) to (3, 3)", "8 elements"},
       [](Rank& r) {
         r.x().reshape({3, 3});
       }},
      {"values of nothing", {"empty tensor"}, [](Rank&) { (void)Tensor().to_host(); }},
      {"a target that is none",
       {"target 0 is 3, expected [0, 3)", "ignored"},
       [](Rank& r) {
         auto micro_batch = r.model->micro_batch();
         cross_entropy(r.net(r.x(1)), Tensor::from_host(r.context, {1}, std::vector<std::int32_t>{3}));
         r.device->synchronize();
       }},
      {"a module of a list that it has not",
       {"module 2 of blocks, which has 2"},
       [](Rank&) {
         ModuleList<Linear> list("blocks");
         list.add(4, 4), list.add(4, 4);
         (void)list[2];
       }},
      {"a gather format that there is not",
       {"called fp4", "int8 and fp8"},
       [](Rank&) { (void)gather_format_named("fp4"); }},
  };
}

std::vector<WrongUse> of_communication() {
  return {
      {"a collective of buffers that do not fit",
       {"all_gather(mine)", "expected"},
       [](Rank& r) {
         const Tensor shard = r.x(2, 4), full = r.x(r.world.size() + 1, 8);
         r.world.communicator()->all_gather(r.context.stream(), "mine", shard.buffer(), full.buffer());
       }},
      {"a broadcast from nobody",
       {"broadcast(mine)", "root 9"},
       [](Rank& r) { r.world.communicator()->broadcast(r.context.stream(), "mine", r.x().buffer(), 9); }},
      {"a group of ranks that there are not",
       {"rank 7"},
       [](Rank& r) {
         (void)r.world.group(std::vector<int>{r.world.rank(), 7});
       }},
      {"a group of others",
       {"a group"},
       [](Rank& r) { (void)r.world.group(std::vector<int>{(r.world.rank() + 1) % 3}); }},
  };
}

std::vector<WrongUse> of_ops() {
  const auto within = [](std::function<void(Rank&)> body) {
    return [body = std::move(body)](Rank& r) {
      auto micro_batch = r.model->micro_batch();
      body(r);
    };
  };
  return {
      {"another width", {"op linear", "(2, 5)", "first.weight", "rows of 4 (in first)"}, within([](Rank& r) {
         r.net(r.x(2, 5));
       })},
      {"another dtype", {"op add", "bf16", "cast"}, within([](Rank& r) { r.x() + r.x(2, 4, DType::bf16); })},
      {"shapes that do not go together", {"op add", "(2, 4)", "(3, 4)"}, within([](Rank& r) { r.x() + r.x(3, 4); })},
      {"floats as targets", {"op cross_entropy", "f32", "i32"}, within([](Rank& r) {
         cross_entropy(r.net(r.x()), r.x(2, 1));
       })},
      {"too few targets", {"op cross_entropy", "1 targets"}, within([](Rank& r) {
         cross_entropy(r.net(r.x()), Tensor::from_host(r.context, {1}, std::vector<std::int32_t>{0}));
       })},
      {"a product of matrices that do not fit", {"op matmul"}, within([](Rank& r) { matmul(r.x(), r.x()); })},
      {"a dim that is not there", {"op softmax", "dim 2"}, within([](Rank& r) { softmax(r.x(), 2); })},
      {"rows behind the end", {"op slice", "9 lines from 0 on"}, within([](Rank& r) { slice(r.x(), 0, 0, 9); })},
      {"parts of another sum", {"op split", "1, 2"}, within([](Rank& r) {
         split(r.x(), 1, {1, 2});
       })},
      {"a convolution of rows", {"op conv2d", "(2, 4)", "height"}, within([](Rank& r) {
         Conv2d("conv", 1, 1, 3)(r.x());
       })},
      {"a pool larger than its image", {"windows of 5 x 5"}, within([](Rank& r) {
         max_pool2d(r.x(1, 16).reshape({1, 1, 4, 4}), {5, 5});
       })},
      {"a batch norm outside of a model", {"\"norm\"", "fully_shard"}, within([](Rank& r) {
         BatchNorm("norm", 4)(r.x());
       })},
      {"a dropout of everything", {"\"drop\"", "below 1"}, within([](Rank&) { Dropout("drop", 1.5f); })},
      {"a dropout outside of a model", {"\"drop\"", "fully_shard"}, within([](Rank& r) {
         Dropout("drop", 0.5f)(r.x());
       })},
  };
}

/// What a rank's UsageError says; else what happened instead.
std::string complaint(World& world, const WrongUse& use) {
  Rank rank(world);
  try {
    use.body(rank);
  } catch (const UsageError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("not a UsageError: ") + error.what();
  }
  return "nothing was said";
}

}  // namespace

TEST_CASE("a wrong use is a UsageError that names it, on every rank, at one rank and at three") {
  std::vector<WrongUse> uses = of_sharding();
  for (auto* more : {&of_micro_batches, &of_steps, &of_numbers, &of_communication, &of_ops})
    for (WrongUse& use : (*more)()) uses.push_back(std::move(use));
  CHECK(uses.size() >= 30);
  for (const int ranks : {1, 3}) {
    for (const WrongUse& use : uses) {
      INFO(use.name << " at " << ranks << " ranks");
      for (const std::string& text : on_ranks(ranks, [&](World& world) { return complaint(world, use); })) {
        CAPTURE(text);
        CHECK(text.find("not a UsageError") == std::string::npos);
        for (const std::string& word : use.words) CHECK_THAT(text, Contains(word));
        CHECK(text.find("check failed") == std::string::npos);
        CHECK(text.find('\n') == std::string::npos);
      }
    }
  }
}

}  // namespace zs::test::wrong_uses_test
