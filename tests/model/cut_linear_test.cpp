// Products that are cut over ranks which read the same samples, against one rank that has them whole.
#include <catch2/catch.hpp>

#include "tests/message_of.h"
#include "tests/model/cut_run.h"

namespace zs::test::cut_linear_test {
namespace {

using namespace cut_run;

/// A product that is a unit.
struct Only : Layer<Only> {
  Only() : Layer("only") {}
  bool is_block() const override { return true; }
  Linear& up = make_child<Linear>("up", kChainWidth, kChainWidth);
  Tensor forward(const Tensor& x) { return up(x); }
};

}  // namespace

TEST_CASE("a hidden dim cut over ranks that read the same samples trains as one rank's") {
  const Weights first = on_ranks(1, [](World& world) { return Run(world, {.tensor = 1}).weights(); }).front();
  const Found alone = run({}).front();
  const ShardOptions by_parameter{.layout = {.layout = Layout::per_parameter}};
  const auto scheme = [](SchemeOptions options) { return ShardOptions{.scheme = options}; };
  const std::vector<Job> jobs{{.tensor = 2},
                              {.tensor = 4, .recompute = Recompute::block},
                              {.data = 2, .tensor = 2, .options = by_parameter},
                              {.data = 2, .tensor = 2, .options = scheme({.strategy = Strategy::zero1})},
                              {.data = 2, .tensor = 2, .options = scheme({.strategy = Strategy::zero2})},
                              {.data = 2, .tensor = 2, .options = scheme({.strategy = Strategy::ddp})},
                              {.data = 2,
                               .tensor = 2,
                               .options = scheme({.strategy = Strategy::hsdp, .group_size = 1}),
                               .recompute = Recompute::attention}};
  for (const Job& job : jobs)
    for (const Found& found : run(job, &alone, &first)) {
      CAPTURE(job.data, job.tensor, job.recompute, found.seen, alone.seen);
      CHECK(found.begin == 0);
      CHECK(found.end < 1e-5);
      REQUIRE(found.seen.size() == alone.seen.size());
      for (std::size_t i = 0; i < alone.seen.size(); ++i) CHECK(found.seen[i] == Approx(alone.seen[i]).epsilon(1e-5));
    }
}

TEST_CASE("products that are cut otherwise than they compute are usage errors") {
  const auto problem = [](Job job) {
    job.tensor = 2;
    return on_ranks(2, [&](World& world) { return message_of([&] { Run(world, job).evaluate(); }); }).front();
  };
  CHECK_THAT(problem({.dims = {{"*.mlp.up.weight", 0}, {"*.mlp.down.weight", 1}}}),
             Catch::Contains("\"blocks.0.mlp.up\" is cut over 2 ranks, and its bias does not go with that"));
  CHECK_THAT(problem({.dims = {{"*.mlp.up.*", 0}, {"*.mlp.down.weight", 1}, {"*.mlp.down.bias", 0}}}),
             Catch::Contains("\"blocks.0.mlp.down\" is cut over 2 ranks, and its bias does not go with that"));
}

TEST_CASE("a product that is cut over ranks which read different data is a usage error") {
  const std::string problem = on_ranks(2, [](World& world) {
                                const auto device =
                                    Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
                                Context context(*device);
                                Only net;
                                FullyShardOptions options{.shard = in_tests({})};
                                options.shard.grid = {{"part", 2}};
                                options.policies = {{"*", {.partition = {"part", {{"*", 0}}}}}};
                                ShardedModel model = fully_shard(net, context, world, options);
                                return message_of([&] {
                                  const auto evaluation = model.evaluation();
                                  net(chain_input(context, 0));
                                });
                              }).front();
  CHECK_THAT(problem, Catch::Contains("is cut over axis part, whose ranks read different data"));
}

}  // namespace zs::test::cut_linear_test
