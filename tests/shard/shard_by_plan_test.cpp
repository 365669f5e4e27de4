// Models that a plan cuts into units: what runs, in which order it is gathered, and that no bit depends on it.
#include <catch2/catch.hpp>

#include <map>
#include <tuple>

#include "model/train/plan/plan.h"
#include "runtime/shard/optimizers/adamw.h"
#include "tests/message_of.h"
#include "tests/shard/model_rank.h"
#include "tests/shard/named_weights.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::shard_by_plan_test {
namespace {

using Catch::Contains;
using Kind = Action::Kind;
using Names = std::vector<std::string>;

bool is_same_run(const TinyResult& a, const TinyResult& b) {
  return a.losses == b.losses && a.grad_norms == b.grad_norms && a.weights == b.weights;
}

Config by_plan(Names apply, const std::string& family = "gpt2") {
  Config config = tiny_config();
  choose_family(config, family);
  config.shard.units = "plan";
  config.plan.apply = std::move(apply);
  return config;
}

const TinyResult& by_blocks(const std::string& family) {
  static std::map<std::string, TinyResult> results;
  if (results.count(family) == 0) {
    Config config = tiny_config();
    choose_family(config, family);
    results[family] = train_tiny(config, {.is_calm = true});
  }
  return results.at(family);
}

/// x + gelu(x W + b), and what is below it behind that.
struct Part : Layer<Part> {
  explicit Part(const std::string& path) : Layer(path) {}
  Part& add(const std::string& name) {
    parts.push_back(&make_child<Part>(name));
    return *parts.back();
  }
  Tensor forward(const Tensor& x) {
    Tensor y = zs::add(x, output(gelu(linear(input(x), weight, &bias), GeluKind::tanh)));
    for (Part* part : parts) y = (*part)(y);
    return y;
  }
  Parameter& weight = add_parameter("weight", {kChainWidth, kChainWidth}, {.normal_std = 0.25f}, true);
  Parameter& bias = add_parameter("bias", {kChainWidth}, {.constant = 0.125f}, false);
  std::vector<Part*> parts;
};

/// A vision tower, then a language model: model.visual.blocks.{*}, model.language_model.layers.{*} of attn and experts.
struct VisionModel : Layer<VisionModel> {
  bool serves_subclasses() const override { return true; }
  explicit VisionModel(std::string path = "") : Layer(std::move(path)) {
    Part& visual = model.add("visual");
    for (const char* block : {"blocks.0", "blocks.1"}) visual.add(block);
    Part& language = model.add("language_model");
    language.add("embed_tokens");
    for (const char* name : {"layers.0", "layers.1"}) {
      Part& layer = language.add(name);
      layer.add("attn");
      layer.add("mlp.experts");
    }
  }
  Tensor forward(const Tensor& x, const Tensor& targets) {
    return lm_head_loss(input(head(model(x))), table, targets, kChainWidth);
  }
  Parameter& table = add_parameter("table", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true);
  Part& model = make_child<Part>("model");
  Part& head = make_child<Part>("lm_head");
};

Plan vision_plan(int ahead) {
  return {.apply = {"model.visual", "model.visual.blocks.{*}", "model.language_model",
                    "model.language_model.embed_tokens", "model.language_model.layers.{*}",
                    "model.language_model.layers.{*}.attn", "model.language_model.layers.{*}.mlp.experts", "lm_head"},
          .hooks = {"model.language_model.layers.{*}"},
          .forward_prefetch = ahead,
          .backward_prefetch = ahead};
}

/// Two steps of two micro-batches.
Weights train(ModelRank<VisionModel>& rank, ShardedModel& model) {
  AdamW optimizer(model.executor(), {.clip = 0});
  for (int i = 0; i < 4; ++i) {
    {
      auto micro_batch = model.micro_batch({.last = i % 2 == 1});
      micro_batch.backward(rank.net(chain_input(rank.context, i * 8 + rank.world.rank()), chain_targets(rank.context)));
    }
    if (i % 2 == 1) optimizer.step(1e-2f);
  }
  return weights_of(model.executor());
}

/// Units in the order in which the last micro-batch asked for these, without what all of their names begin with.
Names order_of(ShardedModel& model, Kind kind) {
  Names order;
  for (const Action& action : model.runtime().actions()) {
    if (action.kind != kind) continue;
    std::string name = model.runtime().name(action.unit);
    for (const char* prefix : {"model.", "language_model."})
      if (name.starts_with(prefix)) name.erase(0, std::string(prefix).size());
    order.push_back(name);
  }
  return order;
}

}  // namespace

TEST_CASE("I1: a plan of attention and MLP units trains to the bits of blocks") {
  const int ranks = GENERATE(1, 2, 3);
  const std::string family = GENERATE(as<std::string>{}, "gpt2", "llama");
  const int variant = GENERATE(range(0, 8));
  if (ranks == 3 && variant > 2) return;
  CAPTURE(ranks, family, variant);
  Config config = by_plan({"blocks.{*}.attention", "blocks.{*}.mlp"}, family);
  switch (variant) {
    case 0: break;
    case 1:
      config.plan.hooks = {"blocks.{*}"};
      config.plan.forward = config.plan.backward = 1;
      break;
    case 2:
      config.plan.apply = {"token_embedding", "blocks.{*}", "blocks.{*}.attention", "blocks.{*}.mlp"};
      config.plan.forward = config.plan.backward = 2;
      config.train.recompute = {"block"};
      break;
    case 3:
      config.train.recompute = {"attention"};
      config.plan.hooks = {"blocks.{0-1}"};
      break;
    case 4: config.plan.reshard = {"blocks.0.*=false", "blocks.{1-2}.mlp=true"}; break;
    case 5: config.plan.strategy = {"blocks.{0-1}.mlp=ddp", "root=zero1", "*.attention=zero2"}; break;
    case 6:
      config.shard.pregather = true;
      config.plan.apply = {"blocks.{*}.*.*", "norm"};
      break;
    case 7:
      config.plan.apply = {family == "gpt2" ? "position_embedding" : "head", "blocks.{*}.norm?"};
      config.plan.hooks = {"blocks.{*}"};
      break;
  }
  CHECK(is_same_run(train_tiny(config, {.ranks = ranks}), by_blocks(family)));
}

TEST_CASE("3-1, 3-10: units of a plan may have other dtypes, and take and give what the others do") {
  Config config = by_plan({"blocks.{*}", "blocks.{*}.attention", "norm"});
  config.precision.param = config.precision.output = config.precision.validation = "bf16";
  config.plan.param = {"*.attention=f32", "norm=f32"};
  const TinyResult mixed = train_tiny(config, {});
  CHECK(mixed.losses[0] == Approx(by_blocks("gpt2").losses[0]).epsilon(1e-2));
  config.plan.param.clear();
  CHECK(mixed.losses != train_tiny(config, {}).losses);  // it makes a difference
}

TEST_CASE("3-11, 3-17..3-22: a vision tower and a language model by the plan of the docstring") {
  const int ranks = GENERATE(1, 2), ahead = GENERATE(0, 1, 2);
  CAPTURE(ranks, ahead);
  const auto run = [&](bool has_plan) {
    return on_ranks(ranks, [&](World& world) {
      ModelRank<VisionModel> rank(world);
      ShardedModel model = rank.shard({.shard = {.schedule = {.keep_root_unsharded = false}, .seed = 5},
                                       .plan = has_plan ? vision_plan(ahead) : Plan{}});
      const auto weights = train(rank, model);
      return std::tuple(weights, order_of(model, Kind::gather), order_of(model, Kind::free_full));
    });
  };
  const auto planned = run(true), whole = run(false);
  for (const auto& result : planned) CHECK((std::get<0>(result) == std::get<0>(whole[0])));
  if (ahead != 1) return;
  // The list of what runs by itself, and all of a layer at once; forward, then backward.
  const Names gathered = std::get<1>(planned[0]);
  const Names forward = {
      "root",     "visual",        "visual.blocks.0",      "visual.blocks.1", "language_model", "embed_tokens",
      "layers.0", "layers.0.attn", "layers.0.mlp.experts", "layers.1",        "layers.1.attn",  "layers.1.mlp.experts",
      "lm_head"};
  REQUIRE(gathered.size() > forward.size());
  CHECK(Names(gathered.begin(), gathered.begin() + std::ssize(forward)) == forward);
}

TEST_CASE("3-34: ranks whose plans gather ahead in another order are stopped with the names of both units") {
  const std::string message = message_of([] {
    on_ranks(2, [](World& world) {
      ModelRank<VisionModel> rank(world);
      Plan plan{.apply = {"model.visual.blocks.0", "model.visual.blocks.1", "lm_head"}, .forward_prefetch = 2};
      if (world.rank() == 1) std::swap(plan.apply[1], plan.apply[2]);
      ShardedModel model = rank.shard({.plan = plan});
      train(rank, model);
      return 0;
    });
  });
  CHECK_THAT(message, Contains("visual.blocks.1") && Contains("lm_head"));
}

TEST_CASE("3-11: a hook opens and closes its units at once, children with their parent") {
  const auto world = make_single_world({.timeout_s = 60});
  ModelRank<VisionModel> rank(*world);
  ShardedModel model =
      rank.shard({.shard = {.schedule = {.prefetch = 0, .keep_root_unsharded = false}}, .plan = vision_plan(0)});
  {
    const auto evaluation = model.evaluation();
    rank.net(chain_input(rank.context, 0), chain_targets(rank.context));
  }
  const Names freed = order_of(model, Kind::free_full);
  const auto first = std::find(freed.begin(), freed.end(), "layers.0.mlp.experts");
  REQUIRE(freed.end() - first >= 3);
  CHECK(Names(first, first + 3) == Names{"layers.0.mlp.experts", "layers.0.attn", "layers.0"});
  CHECK(rank.net.model.opened() == std::vector<int>{});  // a part of the root
}

namespace {

/// Knows better than the plan, in one thing or the other.
struct SelfSharding : VisionModel {
  bool shard_itself(ShardedRuntime& runtime, const Plan& plan) override {
    if (!shards) return false;
    shard_module(*this, runtime, Units::model);
    seen = plan.apply;
    return true;
  }
  bool set_prefetch_lists(ShardedRuntime& runtime, const ResolvedPlan& plan) override {
    if (!lists) return false;
    runtime.set_prefetch(ExecOrder::Phase::forward, 0, {static_cast<int>(plan.units.size()) - 1});
    return true;
  }
  bool shards = false, lists = false;
  Names seen;
};

}  // namespace

TEST_CASE("3-8: a model may make the units, or the lists, itself") {
  const auto world = make_single_world({.timeout_s = 60});
  ModelRank<SelfSharding> rank(*world);
  SECTION("the units") {
    rank.net.shards = true;
    ShardedModel model = rank.shard({.plan = vision_plan(1)});
    CHECK(model.runtime().names() == Names{"root"});
    CHECK(rank.net.seen == vision_plan(1).apply);
  }
  SECTION("the lists") {
    rank.net.lists = true;
    ShardedModel model = rank.shard({.plan = vision_plan(1)});
    {
      const auto evaluation = model.evaluation();
      rank.net(chain_input(rank.context, 0), chain_targets(rank.context));
    }
    CHECK(order_of(model, Kind::gather)[1] == "lm_head");  // behind the root, long before its turn
  }
}

TEST_CASE("3-5: parameters of ignored modules, and of what is below them, stay out of every unit of a plan") {
  const bool has_children = GENERATE(false, true);
  const auto world = make_single_world({.timeout_s = 60});
  ModelRank<VisionModel> rank(*world);
  Plan plan{.apply = {"model", "lm_head"}, .ignore = {has_children ? "model.visual" : "model.visual.blocks.{1-1}"}};
  ShardedModel model = rank.shard({.plan = plan});
  const Part& visual = *rank.net.model.parts[0];
  CHECK((visual.weight.owner() == nullptr) == has_children);
  CHECK((visual.parts[0]->weight.owner() == nullptr) == has_children);
  CHECK(visual.parts[1]->weight.owner() == nullptr);
  CHECK(rank.net.model.parts[1]->weight.owner() != nullptr);
}

TEST_CASE("a plan stands alone, and one that leaves the model unusable says so when the run is planned") {
  const auto world = make_single_world({.timeout_s = 60});
  ModelRank<VisionModel> rank(*world);
  CHECK_THAT(message_of([&] {
               rank.shard({.policies = {{"root", {}}}, .plan = Plan{}});
             }),
             Contains("a plan, and units, policies or ignored parameters beside it"));
  Config config = by_plan({"blocks"});
  CHECK_THAT(message_of([&] { make_plan(config, 0, 1); }),
             Contains("plan.apply: parameter blocks.0.norm1.weight is used while it is not unsharded"));
  config.plan.apply = {"blocks", "blocks.{*}"};
  CHECK_THAT(message_of([&] { make_plan(config, 0, 1); }),
             Contains("plan.apply: \"blocks\" makes blocks a unit, whose forward never runs"));
}

}  // namespace zs::test::shard_by_plan_test
