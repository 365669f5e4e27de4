// Parameters that a unit cannot have, and those that are used where no unit has them unsharded.
#include <catch2/catch.hpp>

#include "tests/message_of.h"
#include "tests/shard/chain_model.h"

namespace zs::test::misused_parameters_test {

using Catch::Contains;

TEST_CASE("parameters of one name are refused when they are added, with both modules") {
  struct Two : Module {
    Two() : Module("") { add_child(a), add_child(b); }
    ChainLayer a{"x"}, b{"x"};
  };
  const auto world = make_single_world({.timeout_s = 60});
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}});
  Context context(*device);
  {
    Two two;
    ShardedRuntime runtime(context, *world, {});
    CHECK_THAT(message_of([&] { shard_module(two, runtime, Units::block); }),
               Contains("two parameters are called x.weight: one of module \"x\", child 0 of the root, one of module "
                        "\"x\", child 1"));
  }
  ChainLayer a("x"), b("x");
  ShardedRuntime runtime(context, *world, {});
  runtime.add_unit("first", {&a.weight});
  CHECK_THAT(message_of([&] { runtime.add_unit("second", {&b.weight}); }),
             Contains("two parameters are called x.weight: one of unit first, one of unit second"));
}

TEST_CASE("a parameter that is used while it is not unsharded says which of its causes it is") {
  struct Unregistered : Module {
    Unregistered() : Module("") {}
    ChainLayer layer{"layer"};
  };
  struct Forgetful : Module {  // whose forward does not enter()
    explicit Forgetful(std::string path)
        : Module(std::move(path)), weight(add_parameter("weight", {10, 10}, {.normal_std = 1}, true)) {}
    bool is_block() const override { return true; }
    Parameter& weight;
  };
  struct Parent : Module {
    Parent() : Module("") { add_child(child); }
    Forgetful child{"child"};
  };
  const auto said = on_ranks(2, [](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}});
    Context context(*device);
    std::vector<std::string> said;
    Unregistered unregistered;
    Parent parent;
    ShardedRuntime first(context, world, {}), second(context, world, {});
    shard_module(unregistered, first, Units::block);
    shard_module(parent, second, Units::block);
    said.push_back(message_of([&] { unregistered.layer.weight.value(); }));
    said.push_back(message_of([&] { parent.child.weight.value(); }));
    second.begin_micro_batch(Mode::eval, true);
    {
      const ForwardScope root(&second, 0);
      said.push_back(message_of([&] { parent.child.weight.value(); }));
      { const ForwardScope child(&second, 1); }
    }
    said.push_back(message_of([&] { parent.child.weight.value(); }));
    second.end_micro_batch();
    said.push_back(message_of([&] { shard_module(parent, second, Units::block); }));
    said.push_back(message_of([&] { shard_module(parent, first, Units::block); }));
    return said;
  });
  for (const auto& of_rank : said) {
    CHECK_THAT(of_rank[0], Contains("layer.weight") && Contains("it belongs to no unit") && Contains("add_child()"));
    CHECK_THAT(of_rank[1], Contains("child.weight") && Contains("no micro-batch is running"));
    CHECK_THAT(of_rank[2], Contains("its unit child has not been entered") && Contains("enter()"));
    CHECK_THAT(of_rank[3], Contains("the forward of its unit child is over"));
    CHECK_THAT(of_rank[4], Contains("shard_module") && Contains("already belongs to a unit"));
    CHECK_THAT(of_rank[5], Contains("shard_module") && Contains("already belongs to a unit"));
  }
}

}  // namespace zs::test::misused_parameters_test
