#include "runtime/shard/placement/rank_grid.h"

#include <catch2/catch.hpp>

#include <set>

#include "runtime/base/check.h"
#include "runtime/shard/execute/sum_over_ranks.h"
#include "runtime/shard/placement/scheme.h"
#include "runtime/tensor/host_view.h"
#include "tests/shard/chain_model.h"

namespace zs::test::rank_grid_test {
namespace {

using Catch::Matchers::Contains;
using Ranks = std::vector<int>;

/// Two by two by two ranks: neighbours compute one loss together, pairs of them shard, and there are two replicas.
const std::vector<GridAxis> kCube{{"replica", 2}, {"shard", 2}, {"tensor", 2, false}};

/// Weights after two steps of three micro-batches, and at the end what was summed over ranks: losses and norms.
std::vector<std::vector<float>> trained(World& world, ShardOptions options, std::vector<GridAxis> grid) {
  options.grid = std::move(grid);
  ChainRun run(world, options);
  float sum = 0;
  for (int step = 0; step < 2; ++step) {
    float loss = 0;
    for (int i = 0; i < 3; ++i) loss += run.micro_batch(3 * step + i, i == 2, 1.0f / 3);
    const Tensor own = Tensor::from_host(run.context, {1}, std::vector{loss});
    sum += sum_over_ranks(run.runtime.executor(), own).to_host()[0] + run.runtime.mean_over_ranks(own).to_host()[0];
    run.optimizer->step(0.01f);
    sum += HostView(run.context, run.context.stream(), run.optimizer->grad_norm()).as<float>()[0];
  }
  auto weights = run.weights();
  weights.push_back({sum});
  return weights;
}

}  // namespace

TEST_CASE("a grid says which ranks read different data and share a loss") {
  const RankGrid grid(kCube, 5, 8);
  CHECK(grid.data_share() == DataShare(2, 4));
  CHECK(grid.data_share().item(3) == 14);
  CHECK(grid.loss_ranks() == Ranks{1, 3, 5, 7});
  CHECK_FALSE(grid.is_data_alone());
  const RankGrid plain({}, 5, 8);
  CHECK(plain.data_share() == DataShare(5, 8));
  CHECK(plain.is_data_alone());
  CHECK_THROWS_WITH(RankGrid(kCube, 0, 4), Contains("is not made of the job's 4 ranks"));
  CHECK_THROWS_WITH(grid.sub_grid({"expert"}), Contains("no axis expert"));
}

TEST_CASE("a scheme cuts and copies over the axes of a unit's sub-grid, and not over those beside it") {
  const RankGrid grid(kCube, 5, 8);
  const ShardScheme scheme({.strategy = Strategy::hsdp, .group_size = 2}, grid.sub_grid());
  CHECK(scheme.ranks_over(scheme.master) == Ranks{5, 7});
  CHECK(scheme.ranks_over(scheme.replicate) == Ranks{1, 5});
  CHECK(scheme.beside == ShardScheme::Axes{"tensor"});
  CHECK(scheme.ranks_over(scheme.holders()) == Ranks{5, 7});
  CHECK(scheme.data_shares() == 4);
  CHECK(scheme.at(2).ranks_over(scheme.master) == Ranks{0, 2});
  // A partition over an axis that reads different data: gradients are of all shares, and exchanged over the rest.
  const ShardScheme parts({.strategy = Strategy::zero3}, grid.sub_grid({"shard"}));
  CHECK(parts.ranks_over(parts.master) == Ranks{1, 5});
  CHECK(parts.data_shares() == 4);
  CHECK(parts.ranks_over(parts.holders()) == Ranks{1, 5, 3, 7});
  // Axes of a mesh of one's own are data axes: each is the masters' or the replicas'.
  const MeshLayout layout{.axes = {{"a", 2}, {"b", 2}}, .order = {3, 2, 1, 0}, .master = {"a", "b"}};
  const ShardScheme own({.mesh = layout}, grid.sub_grid());
  CHECK(own.ranks_over(own.master) == Ranks{7, 5, 3, 1});
  const MeshLayout wrong{.axes = {{"a", 2}, {"b", 2}}, .master = {"a"}};
  CHECK_THROWS_WITH(ShardScheme({.mesh = wrong}, grid.sub_grid()), Contains("axis b is in neither"));
}

TEST_CASE("0.3-11l: no group of any role crosses an axis that is in none of them") {
  const std::vector<GridAxis> grid{{"stage", 2, false}, {"data", 4}, {"tensor", 2, false}};
  const std::vector<SchemeOptions> schemes{{.strategy = Strategy::ddp},
                                           {.strategy = Strategy::zero1},
                                           {.strategy = Strategy::zero3, .reshard_after_forward = Reshard::over(2)},
                                           {.strategy = Strategy::hsdp, .group_size = 2},
                                           {.strategy = Strategy::nested, .group_size = 2}};
  for (const SchemeOptions& options : schemes)
    for (int rank = 0; rank < 16; ++rank) {
      const RankGrid own(grid, rank, 16);
      CHECK(own.axes_of_same_data() == std::vector<std::string>{"stage", "tensor"});
      const ShardScheme scheme(options, own.sub_grid({"tensor"}));
      const auto coordinates = [&](const ShardScheme::Axes& role) {
        std::set<std::pair<int, int>> found;
        for (const int other : scheme.ranks_over(role)) found.emplace(other / 8, other % 2);
        return found;
      };
      for (const auto& role :
           {scheme.runtime, scheme.between, scheme.accumulator, scheme.master, scheme.replicate, scheme.reduced})
        CHECK(coordinates(role) == std::set<std::pair<int, int>>{{rank / 8, rank % 2}});
      // Only what the parts make up together reaches over the axis that cuts, and nothing over the stages.
      CHECK(coordinates(scheme.holders()) == std::set<std::pair<int, int>>{{rank / 8, 0}, {rank / 8, 1}});
    }
}

TEST_CASE("ranks that read the same data train as one of them alone, in whatever scheme") {
  struct Case {
    ShardOptions options;
    std::vector<GridAxis> grid;
  };
  const std::vector<GridAxis> inner{{"data", 2}, {"tensor", 2, false}}, outer{{"tensor", 2, false}, {"data", 2}};
  const std::vector<Case> cases{{{}, inner},
                                {{}, outer},
                                {{.scheme = {.strategy = Strategy::ddp}}, inner},
                                {{.scheme = {.deterministic = true}}, inner},
                                {{.scheme = {.strategy = Strategy::nested, .group_size = 1}}, outer}};
  for (const Case& row : cases) {
    const auto alone = on_ranks(2, [&](World& world) { return trained(world, row.options, {}); });
    for (const auto& weights : on_ranks(4, [&](World& world) { return trained(world, row.options, row.grid); }))
      CHECK(weights == alone.front());
  }
}

}  // namespace zs::test::rank_grid_test
