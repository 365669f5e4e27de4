// What a plan comes to: units, what opens them, and what is gathered ahead of which.
#include "model/sharding/shard_plan.h"

#include <catch2/catch.hpp>

#include <map>

#include "tests/message_of.h"

namespace shard_plan_test {

using namespace zs;
using namespace zs::test;
using Catch::Contains;

namespace {

using Names = std::vector<std::string>;
/// Unit -> what is gathered ahead when it runs.
using Lists = std::map<std::string, Names>;

/// A module with one parameter; `names` are of modules below it, and of what they are in.
struct NamedModule : Module {
  explicit NamedModule(std::string path = "") : Module(std::move(path)) { add_parameter("w", {1}, {}, false); }

  void add(const std::string& name) {
    NamedModule* at = this;
    for (std::size_t begin = 0; begin <= name.size();) {
      const std::size_t end = std::min(name.find('.', begin), name.size());
      at = &at->child(name.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  NamedModule& child(const std::string& name) {
    for (NamedModule* known : nodes)
      if (known->path() == path_of(name)) return *known;
    nodes.push_back(&make_child<NamedModule>(name));
    return *nodes.back();
  }
  NamedModule& share(NamedModule& other) {
    nodes.push_back(&add_child(other));
    return other;
  }
  std::vector<NamedModule*> nodes;
};

struct Tree {
  explicit Tree(const Names& names) {
    for (const std::string& name : names) root.add(name);
  }
  NamedModule root;
};

const Names kVisionModel = {"model.visual.blocks.0",
                            "model.visual.blocks.1",
                            "model.language_model.embed_tokens",
                            "model.language_model.layers.0.attn",
                            "model.language_model.layers.0.mlp.experts",
                            "model.language_model.layers.1.attn",
                            "model.language_model.layers.1.mlp.experts",
                            "lm_head"};
const Names kVisionPlan = {"model.visual",
                           "model.visual.blocks.{*}",
                           "model.language_model",
                           "model.language_model.embed_tokens",
                           "model.language_model.layers.{*}",
                           "model.language_model.layers.{*}.attn",
                           "lm_head"};

/// Without lists that are empty; names without what all of them begin with.
Lists lists(const Names& modules, const Plan& plan, bool is_forward, const std::string& prefix = "") {
  Tree tree(modules);
  const ResolvedPlan resolved = resolve(tree.root, plan);
  const auto short_name = [&](std::size_t unit) {
    const std::string& name = resolved.units[unit].module->path();
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  };
  Lists made;
  for (std::size_t i = 0; i < resolved.units.size(); ++i) {
    const auto& targets = is_forward ? resolved.units[i].forward : resolved.units[i].backward;
    if (!targets || targets->empty()) continue;
    for (const std::size_t target : *targets) made[short_name(i)].push_back(short_name(target));
  }
  return made;
}

void check(const Names& modules, const Plan& plan, const Lists& forward, const Lists& backward,
           const std::string& prefix = "") {
  CHECK(lists(modules, plan, true, prefix) == forward);
  CHECK(lists(modules, plan, false, prefix) == backward);
}

Plan plan_of(Names apply, int ahead = 1, Names hooks = {}, Names ignore = {}) {
  Plan plan{.apply = std::move(apply), .ignore = std::move(ignore), .hooks = std::move(hooks)};
  plan.forward_prefetch = plan.backward_prefetch = ahead;
  return plan;
}

std::string problem_of(const Names& modules, const Plan& plan) {
  Tree tree(modules);
  return message_of([&] { resolve(tree.root, plan); });
}

Names units_of(const ResolvedPlan& plan) {
  Names names;
  for (const auto& unit : plan.units) names.push_back(unit.name);
  return names;
}

}  // namespace

TEST_CASE("3-17..3-22: the plan of the docstring as printed, without hooks") {
  check(kVisionModel, plan_of(kVisionPlan),
        {{"visual", {"visual.blocks.0"}},
         {"visual.blocks.0", {"visual.blocks.1"}},
         {"visual.blocks.1", {"language_model"}},
         {"language_model", {"language_model.embed_tokens"}},
         {"language_model.embed_tokens", {"language_model.layers.0"}},
         {"language_model.layers.0", {"language_model.layers.0.attn"}},
         {"language_model.layers.0.attn", {"language_model.layers.1"}},
         {"language_model.layers.1", {"language_model.layers.1.attn"}},
         {"language_model.layers.1.attn", {"lm_head"}}},
        {{"lm_head", {"language_model"}},
         {"language_model", {"language_model.layers.1"}},
         {"language_model.layers.1", {"language_model.layers.1.attn"}},
         {"language_model.layers.1.attn", {"language_model.layers.0"}},
         {"language_model.layers.0", {"language_model.layers.0.attn"}},
         {"language_model.layers.0.attn", {"language_model.embed_tokens"}},
         {"language_model.embed_tokens", {"visual"}},
         {"visual", {"visual.blocks.1"}},
         {"visual.blocks.1", {"visual.blocks.0"}}},
        "model.");
}

// There a plan has experts in a list of their own, and they come before what is around them: [experts, layer, attn].
TEST_CASE(
    "3-18, 3-20, 3-34: experts are units as any other, in the order of modules, where published lists have them "
    "first") {
  Names apply = kVisionPlan;
  apply.insert(apply.end() - 1, "model.language_model.layers.{*}.mlp.experts");
  const Names hooks = {"model.language_model.layers.{*}"};
  const std::string l0 = "language_model.layers.0", l1 = "language_model.layers.1";
  const Names of_l0 = {l0, l0 + ".attn", l0 + ".mlp.experts"}, of_l1 = {l1, l1 + ".attn", l1 + ".mlp.experts"};
  SECTION("one entry ahead") {
    check(kVisionModel, plan_of(apply, 1, hooks),
          {{"visual", {"visual.blocks.0"}},
           {"visual.blocks.0", {"visual.blocks.1"}},
           {"visual.blocks.1", {"language_model"}},
           {"language_model", {"language_model.embed_tokens"}},
           {"language_model.embed_tokens", of_l0},
           {l0 + ".attn", of_l1},
           {l1 + ".attn", {"lm_head"}}},
          {{"lm_head", {"language_model"}},
           {"language_model", of_l1},
           {l1, of_l0},
           {l0, {"language_model.embed_tokens"}},
           {"language_model.embed_tokens", {"visual"}},
           {"visual", {"visual.blocks.1"}},
           {"visual.blocks.1", {"visual.blocks.0"}}},
          "model.");
  }
  SECTION("two entries ahead") {
    const auto both = [](Names first, const Names& second) {
      first.insert(first.end(), second.begin(), second.end());
      return first;
    };
    check(kVisionModel, plan_of(apply, 2, hooks),
          {{"visual", {"visual.blocks.0", "visual.blocks.1"}},
           {"visual.blocks.0", {"visual.blocks.1", "language_model"}},
           {"visual.blocks.1", {"language_model", "language_model.embed_tokens"}},
           {"language_model", both({"language_model.embed_tokens"}, of_l0)},
           {"language_model.embed_tokens", both(of_l0, of_l1)},
           {l0 + ".attn", both(of_l1, {"lm_head"})},
           {l1 + ".attn", {"lm_head"}}},
          {{"lm_head", both({"language_model"}, of_l1)},
           {"language_model", both(of_l1, of_l0)},
           {l1, both(of_l0, {"language_model.embed_tokens"})},
           {l0, {"language_model.embed_tokens", "visual"}},
           {"language_model.embed_tokens", {"visual", "visual.blocks.1"}},
           {"visual", {"visual.blocks.1", "visual.blocks.0"}},
           {"visual.blocks.1", {"visual.blocks.0"}}},
          "model.");
  }
}

TEST_CASE("3-17..3-22: a published plan, with hooks, whose experts are units of the plan") {
  const std::string l0 = "language_model.layers.0", l1 = "language_model.layers.1";
  Names modules;
  for (std::string name : kVisionModel) {
    if (const std::size_t at = name.find(".attn"); at != name.npos) name.replace(at, 5, ".linear_attn");
    modules.push_back(name);
  }
  modules.emplace_back("mtp");
  const Names of_l0 = {l0, l0 + ".linear_attn", l0 + ".mlp.experts"},
              of_l1 = {l1, l1 + ".linear_attn", l1 + ".mlp.experts"};
  check(modules,
        plan_of({"model.visual", "model.visual.blocks.{*}", "model.language_model.embed_tokens", "model.language_model",
                 "model.language_model.layers.{*}", "model.language_model.layers.{*}.linear_attn",
                 "model.language_model.layers.{*}.mlp.experts", "lm_head", "mtp"},
                1, {"model.language_model.layers.{*}"}),
        {{"visual", {"visual.blocks.0"}},
         {"visual.blocks.0", {"visual.blocks.1"}},
         {"visual.blocks.1", {"language_model.embed_tokens"}},
         {"language_model.embed_tokens", {"language_model"}},
         {"language_model", of_l0},
         {l0 + ".linear_attn", of_l1},
         {l1 + ".linear_attn", {"lm_head"}},
         {"lm_head", {"mtp"}}},
        {{"mtp", {"lm_head"}},
         {"lm_head", {"language_model"}},
         {"language_model", of_l1},
         {l1, of_l0},
         {l0, {"language_model.embed_tokens"}},
         {"language_model.embed_tokens", {"visual"}},
         {"visual", {"visual.blocks.1"}},
         {"visual.blocks.1", {"visual.blocks.0"}}},
        "model.");
}

TEST_CASE("3-19, 3-21: a child's pattern before its parent's") {
  check({"m.blocks.0", "m.blocks.1", "head"}, plan_of({"m.blocks.{*}", "m", "head"}),
        {{"m.blocks.0", {"m.blocks.1"}}, {"m.blocks.1", {"m"}}, {"m", {"head"}}},
        {{"head", {"m"}}, {"m", {"m.blocks.1"}}, {"m.blocks.1", {"m.blocks.0"}}});
}

// There neighbours are swapped, and p.l stays behind p.l.x, as p.mlp is between them.
TEST_CASE("3-21, 3-40: in backward parents come before what is in them, whatever is between them") {
  CHECK(lists({"p.mlp", "p.l.x"}, plan_of({"p*", "p.l"}), false) ==
        Lists{{"p", {"p.l"}}, {"p.l", {"p.l.x"}}, {"p.l.x", {"p.mlp"}}});
}

// There each element of a list of experts is wrapped, but prefetch lists name the list, which the framework refuses.
TEST_CASE("3-41: what is gathered ahead are units, of a list of experts each element") {
  CHECK(lists({"l.0.experts.0", "l.0.experts.1", "l.1.experts.0", "l.1.experts.1"},
              plan_of({"l.{*}.experts.{*}"}, 1, {"l.{*}"}),
              true) == Lists{{"l.0.experts.0", {"l.1.experts.0", "l.1.experts.1"}}});
}

// There they have none, and the framework gathers ahead of them what it thinks best.
TEST_CASE("3-36: what is gathered with others has a list that is empty, and what is in no entry has none") {
  Tree tree({"l.0.attn", "l.0.mlp", "l.1.attn", "l.1.mlp"});
  const auto plan = resolve(tree.root, plan_of({"l.{*}", "l.{*}.*"}, 1, {"l.{*}"}));
  REQUIRE(plan.units.size() == 7);
  CHECK((!plan.units[0].forward && !plan.units[0].backward));
  for (std::size_t unit = 1; unit < plan.units.size(); ++unit) {
    CAPTURE(plan.units[unit].name);
    CHECK((plan.units[unit].forward && plan.units[unit].forward->empty() == (plan.units[unit].name != "l.0.attn")));
    CHECK((plan.units[unit].backward && plan.units[unit].backward->empty() == (plan.units[unit].name != "l.1")));
  }
}

TEST_CASE("3-19: a pattern that another one begins with by chance") {
  check({"enc", "enc2.l.0", "enc.l.0"}, plan_of({"enc", "enc2", "enc.l.{*}", "enc2.l.{*}"}),
        {{"enc", {"enc.l.0"}}, {"enc.l.0", {"enc2"}}, {"enc2", {"enc2.l.0"}}},
        {{"enc2", {"enc2.l.0"}}, {"enc2.l.0", {"enc"}}, {"enc", {"enc.l.0"}}});
}

// There "*.b" does not contain the text "a", and a.b comes behind c.
TEST_CASE("3-19: entries nest as their modules do, where the published code compares the patterns' texts") {
  CHECK(lists({"a.b", "c"}, plan_of({"a", "c", "*.b"}), true) == Lists{{"a", {"a.b"}}, {"a.b", {"c"}}});
}

// There the module is wrapped twice, which fails.
TEST_CASE("3-5, 3-18: a module that two patterns match is one unit, where the last one has it") {
  const Plan plan = plan_of({"a.{*}", "a.{0-0}"});
  check({"a.0", "a.1"}, plan, {{"a.1", {"a.0"}}}, {{"a.0", {"a.1"}}});
  Tree tree({"a.0", "a.1"});
  CHECK(units_of(resolve(tree.root, plan)) == Names{"root", "a.0", "a.1"});
}

TEST_CASE("3-5: a module that is registered twice is one unit, where the published code wraps it for each path") {
  NamedModule root;
  NamedModule& shared = root.child("a").child("x");
  root.child("b").share(shared);
  CHECK(units_of(resolve(root, plan_of({"a.x", "b"}))) == Names{"root", "a.x", "b"});
}

// There it is wrapped once more behind all others.
TEST_CASE("3-4, 3-6: a pattern that matches the root makes no second unit of it") {
  const Plan plan = plan_of({"*"});
  check({"a.0", "a.1"}, plan, {{"", {"a"}}, {"a", {"a.0"}}, {"a.0", {"a.1"}}},
        {{"", {"a"}}, {"a", {"a.1"}}, {"a.1", {"a.0"}}});
  Tree tree({"a.0", "a.1"});
  CHECK(units_of(resolve(tree.root, plan)) == Names{"root", "a", "a.0", "a.1"});
}

// There each hook needs a pattern of its own, and the plan fails.
TEST_CASE("3-11, 3-18: a hook need not be a unit, where the published code finds no parent for it") {
  const Names modules = {"l.0.attn", "l.0.mlp", "l.1.attn", "l.1.mlp"};
  const Plan plan = plan_of({"l.{*}.attn", "l.{*}.mlp"}, 1, {"l.{*}"});
  check(modules, plan, {{"l.0.attn", {"l.1.attn", "l.1.mlp"}}}, {{"l.1.mlp", {"l.0.attn", "l.0.mlp"}}});
  Tree tree(modules);
  for (const auto& unit : resolve(tree.root, plan).units)
    CHECK(unit.hook->path() == (unit.name == "root" ? "" : unit.name.substr(0, 3)));
}

TEST_CASE("3-11: of several hooks around a unit the innermost opens it") {
  Tree tree({"l.0.attn", "l.0.mlp"});
  const auto plan = resolve(tree.root, plan_of({"l.{*}", "l.{*}.*"}, 0, {"l", "l.0.attn"}));
  Lists opened;
  for (const auto& unit : plan.units) opened[unit.hook->path()].push_back(unit.name);
  CHECK(opened == Lists{{"", {"root"}}, {"l", {"l.0", "l.0.mlp"}}, {"l.0.attn", {"l.0.attn"}}});
  for (const auto& unit : plan.units) CHECK((!unit.forward && !unit.backward));  // 3-17: nobody asked for lists
}

// There what a list would be taken of is empty, and the plan fails with an index out of range.
TEST_CASE("3-5, 3-18: a hook without a unit, and a pattern of ignored modules alone, are refused by name") {
  CHECK_THAT(problem_of({"a.x", "b"}, plan_of({"a", "b"}, 1, {"a"}, {"a"})),
             Contains("plan.apply: \"a\" matches modules alone that are ignored"));
  CHECK_THAT(problem_of({"a.x", "b"}, plan_of({"b"}, 1, {"a"})),
             Contains("plan.hooks: \"a\" matches modules that open no unit"));
}

// There they are wrapped all the same.
TEST_CASE("3-5: nothing below an ignored module is a unit, where the published code leaves out the module alone") {
  Tree tree({"a.x", "b.x"});
  const auto plan = resolve(tree.root, plan_of({"*.x"}, 0, {}, {"a"}));
  CHECK(units_of(plan) == Names{"root", "b.x"});
  REQUIRE(plan.ignored.size() == 1);
  CHECK(plan.ignored[0]->path() == "a");
}

// There it is enough that one of them matches.
TEST_CASE("3-5: each pattern matches a module, or is refused with the nearest names") {
  CHECK_THAT(problem_of({"a.0"}, plan_of({"a.{*}", "zz"})),
             Contains("plan.apply: \"zz\" matches no module") && Contains("the nearest names are a, a.{*}"));
  CHECK_THAT(problem_of({"a.0"}, plan_of({"zz"})), Contains("plan.apply: \"zz\" matches no module"));
  CHECK_THAT(problem_of({"a.0"}, plan_of({"a"}, 0, {"zz"})), Contains("plan.hooks: \"zz\" matches no module"));
  CHECK_THAT(problem_of({"a.0"}, plan_of({"a"}, 0, {}, {"zz"})), Contains("plan.ignore: \"zz\" matches no module"));
  CHECK_THAT(problem_of({"a.0"}, plan_of({"a.{1-0}"})), Contains("plan.apply: the pattern"));
}

// There it is an error, while a list that is not given is the root alone.
TEST_CASE("3-1: a plan that applies nothing is the root alone") {
  Tree tree({"a.0"});
  CHECK(units_of(resolve(tree.root, plan_of({}))) == Names{"root"});
}

TEST_CASE("3-5: a module without parameters is no unit, though a pattern matches it") {
  struct Empty : Module {
    explicit Empty(std::string path) : Module(std::move(path)) {}
  };
  struct Model : Module {
    Model() : Module("") { make_child<NamedModule>("a.proj"), make_child<Empty>("a.dropout"); }
  } model;
  const ResolvedPlan made = resolve(model, {.apply = {"a.*"}});
  REQUIRE(made.units.size() == 2);
  CHECK(made.units[1].name == "a.proj");
  CHECK_THAT(message_of([&] { resolve(model, {.apply = {"a.dropout"}}); }), Contains("have no parameters"));
}

TEST_CASE("3-1, 3-10: the first rule that matches a unit says a thing, and each rule decides of something") {
  Tree tree({"a.0", "a.1", "b"});
  Plan plan = plan_of({"a.{*}", "b"});
  plan.rules = {{.pattern = "a.0", .param = DType::f32, .key = "param"},
                {.pattern = "a.*", .reshard_after_forward = false, .param = DType::bf16, .key = "mixed"},
                {.pattern = "root", .reshard_after_forward = Reshard::over(2), .key = "reshard"}};
  const ResolvedPlan resolved = resolve(tree.root, plan);
  const MixedPrecisionPolicy base{.param = DType::bf16, .reduce = DType::bf16, .rounds_stochastically = true};
  const UnitPolicy root = resolved.policy(resolved.units[0], base), first = resolved.policy(resolved.units[1], base),
                   second = resolved.policy(resolved.units[2], base);
  CHECK(root == UnitPolicy{.reshard_after_forward = Reshard::over(2)});
  CHECK(first == UnitPolicy{.reshard_after_forward = false,
                            .precision = MixedPrecisionPolicy{.param = DType::f32, .output = DType::bf16}});
  CHECK(second == UnitPolicy{.reshard_after_forward = false, .precision = base});
  CHECK(resolved.policy(resolved.units[3], base) == UnitPolicy{});

  // An output dtype that somebody asks for counts, whatever a unit computes in.
  const MixedPrecisionPolicy wide{.param = DType::bf16, .reduce = DType::bf16, .output = DType::f32};
  CHECK(resolved.policy(resolved.units[1], wide).precision->output == DType::f32);
  plan.rules[0].output = DType::bf16;
  CHECK(resolve(tree.root, plan).policy(resolved.units[1], wide).precision->output == DType::bf16);
  plan.rules[0].output = DType::f32;
  CHECK(resolve(tree.root, plan).policy(resolved.units[1], base).precision->output == DType::f32);

  plan.rules.push_back({.pattern = "a.1", .param = DType::f32, .key = "late"});
  CHECK_THAT(problem_of({"a.0", "a.1", "b"}, plan), Contains("plan.late: \"a.1\" decides of no unit"));
  plan.rules.back() = {.pattern = "a", .param = DType::f32, .key = "none"};
  CHECK_THAT(problem_of({"a.0", "a.1", "b"}, plan), Contains("plan.none: \"a\" matches no unit"));
}

}  // namespace shard_plan_test
