#include "runtime/shard/placement/scheme.h"

#include <catch2/catch.hpp>

#include <functional>
#include <set>

#include "runtime/base/check.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::scheme_test {
namespace {

using Axes = ShardScheme::Axes;
using Slice = ShardScheme::Slice;
using Catch::Matchers::Contains;

/// How many ranks each role is sharded over: runtime, between, accumulator, master, replicate.
std::vector<int> row(const SchemeOptions& options, int ranks) {
  const ShardScheme scheme(options, 0, ranks);
  std::vector<int> counts;
  for (const Axes* axes : {&scheme.runtime, &scheme.between, &scheme.accumulator, &scheme.master, &scheme.replicate}) {
    counts.push_back(scheme.slice(*axes).count);
  }
  return counts;
}

std::string problem_of(const SchemeOptions& options, int ranks) {
  try {
    ShardScheme(options, 0, ranks);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::config);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("the schemes shard runtime, between, accumulator, master and replicas as their table says") {
  using Row = std::vector<int>;
  CHECK(row({.strategy = Strategy::ddp}, 8) == Row{1, 1, 1, 1, 8});
  CHECK(row({.strategy = Strategy::zero1}, 8) == Row{1, 1, 1, 8, 1});
  CHECK(row({.strategy = Strategy::zero2}, 8) == Row{1, 1, 8, 8, 1});
  CHECK(row({.strategy = Strategy::zero3}, 8) == Row{8, 8, 8, 8, 1});
  CHECK(row({.strategy = Strategy::zero3, .reduce_every_micro_batch = false}, 8) == Row{8, 8, 1, 8, 1});
  CHECK(row({.strategy = Strategy::zero3, .reshard_after_forward = false}, 8) == Row{8, 1, 8, 8, 1});
  CHECK(row({.strategy = Strategy::shard_grad_op, .reduce_every_micro_batch = false}, 8) == Row{8, 1, 1, 8, 1});
  CHECK(row({.strategy = Strategy::hsdp, .group_size = 4}, 8) == Row{4, 4, 4, 4, 2});
  CHECK(row({.strategy = Strategy::hsdp, .group_size = 4, .reshard_after_forward = Reshard::over(2)}, 8) ==
        Row{4, 2, 4, 4, 2});
  CHECK(row({.strategy = Strategy::nested, .group_size = 4, .reduce_every_micro_batch = false}, 8) ==
        Row{4, 4, 1, 8, 1});
  CHECK(row({.strategy = Strategy::nested, .group_size = 4}, 8) == Row{4, 4, 4, 8, 1});
  CHECK(row({.strategy = Strategy::zero3, .reshard_after_forward = Reshard::over(2)}, 8) == Row{8, 2, 8, 8, 1});
}

TEST_CASE("small groups of one rank or of all are the schemes without groups, and one rank shards nothing") {
  for (const bool is_deterministic : {false, true}) {
    const auto with = [&](SchemeOptions options) {
      options.deterministic = is_deterministic;
      return row(options, 8);
    };
    CHECK(with({.strategy = Strategy::nested, .group_size = 8}) == with({.strategy = Strategy::zero3}));
    CHECK(with({.strategy = Strategy::nested, .group_size = 1}) == with({.strategy = Strategy::zero2}));
    CHECK(with({.strategy = Strategy::hsdp, .group_size = 8}) == with({.strategy = Strategy::zero3}));
    CHECK(with({.strategy = Strategy::hsdp, .group_size = 1}) == with({.strategy = Strategy::ddp}));
    CHECK(with({.strategy = Strategy::zero3, .reshard_after_forward = Reshard::over(8)}) ==
          with({.strategy = Strategy::zero3}));
  }
  for (const std::string& name : scheme_names()) CHECK(row(scheme_of(name, 1), 1) == std::vector<int>{1, 1, 1, 1, 1});
}

TEST_CASE("of nested groups the rank at position r in group g owns slice r * groups + g") {
  for (int rank = 0; rank < 8; ++rank) {
    const ShardScheme scheme({.strategy = Strategy::nested, .group_size = 4}, rank, 8);
    const int group = rank / 4, position = rank % 4;
    CHECK(scheme.slice(scheme.master) == Slice{position * 2 + group, 8});
    CHECK(scheme.slice(scheme.runtime) == Slice{position, 4});
    CHECK(scheme.ranks_over(scheme.runtime) ==
          (group == 0 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{4, 5, 6, 7}));
    CHECK(scheme.ranks_over(scheme.master) == std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7});
  }
}

TEST_CASE("the ranks that share a whole are in the order of their slices, and agree on it") {
  for (const std::string& name : scheme_names()) {
    for (const int ranks : {1, 2, 4, 8, 12}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const ShardScheme scheme(scheme_of(name, ranks), rank, ranks);
        for (Axes ShardScheme::*role :
             {&ShardScheme::runtime, &ShardScheme::between, &ShardScheme::reduced, &ShardScheme::master}) {
          const std::vector<int> group = scheme.ranks_over(scheme.*role);
          REQUIRE(std::ssize(group) == scheme.slice(scheme.*role).count);
          REQUIRE(scheme.finest() % std::ssize(group) == 0);
          for (int i = 0; i < std::ssize(group); ++i) {
            const ShardScheme other(scheme_of(name, ranks), group[static_cast<std::size_t>(i)], ranks);
            REQUIRE(other.slice(other.*role).index == i);
            REQUIRE(other.ranks_over(other.*role) == group);
          }
        }
      }
    }
  }
}

TEST_CASE(
    "with deterministic sums every scheme reduces over all ranks in their order, into its own part of the master "
    "slice") {
  for (const std::string& name : scheme_names()) {
    SchemeOptions options = scheme_of(name, 8);
    options.deterministic = true;
    for (int rank = 0; rank < 8; ++rank) {
      const ShardScheme scheme(options, rank, 8);
      CHECK(scheme.slice(scheme.reduced) == Slice{rank, 8});
      CHECK(scheme.accumulator == scheme.reduced);
      const Slice master = scheme.slice(scheme.master);
      CHECK(rank * master.count / 8 == master.index);
    }
  }
}

TEST_CASE("2A-2: a mesh of one's own says which ranks share what, in whatever order they lie") {
  // Replicas are neighbours, and ranks of the second half come first.
  const MeshLayout layout{.axes = {{"shard", 2}, {"replica", 2}},
                          .order = {2, 3, 0, 1},
                          .runtime = {"shard"},
                          .master = {"shard"},
                          .replicate = {"replica"}};
  for (int rank = 0; rank < 4; ++rank) {
    const ShardScheme scheme({.mesh = layout}, rank, 4);
    CHECK(scheme.ranks_over(scheme.master) == (rank % 2 == 0 ? std::vector<int>{2, 0} : std::vector<int>{3, 1}));
    CHECK(scheme.ranks_over(scheme.replicate) == (rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}));
    CHECK(scheme.slice(scheme.master) == Slice{rank < 2 ? 1 : 0, 2});
    CHECK(scheme.between == scheme.runtime);
    CHECK(scheme.name() == "mesh");
  }
  // What strategies make, made by hand.
  const auto by_hand = [](const MeshLayout& mesh) { return row({.mesh = mesh}, 8); };
  CHECK(by_hand({.axes = {{"a", 8}}, .replicate = {"a"}}) == row({.strategy = Strategy::ddp}, 8));
  CHECK(by_hand({.axes = {{"a", 8}}, .master = {"a"}}) == row({.strategy = Strategy::zero2}, 8));
  CHECK(by_hand({.axes = {{"g", 2}, {"n", 4}}, .runtime = {"n"}, .master = {"n", "g"}}) ==
        row({.strategy = Strategy::nested, .group_size = 4}, 8));
  CHECK(by_hand({.axes = {{"r", 2}, {"o", 2}, {"i", 2}},
                 .runtime = {"o", "i"},
                 .between = MeshAxes{"i"},
                 .master = {"o", "i"},
                 .replicate = {"r"}}) ==
        row({.strategy = Strategy::hsdp, .group_size = 4, .reshard_after_forward = Reshard::over(2)}, 8));
}

TEST_CASE("2A-2: a mesh of one's own that makes no scheme is refused by what is wrong with it") {
  const MeshAxis a{"a", 2}, b{"b", 4};
  const auto problem = [](const MeshLayout& mesh, bool is_deterministic = false) {
    return problem_of({.deterministic = is_deterministic, .mesh = mesh}, 8);
  };
  CHECK_THAT(problem({.axes = {a}, .master = {"a"}}), Contains("the mesh (a=2) is not made of the job's 8 ranks"));
  CHECK_THAT(problem({.axes = {a, b}, .master = {"a"}}), Contains("axis b is in neither of `master` and `replicate`"));
  CHECK_THAT(problem({.axes = {a, b}, .master = {"a", "b"}, .replicate = {"b"}}), Contains("axis b is in both"));
  CHECK_THAT(problem({.axes = {a, b}, .runtime = {"b"}, .master = {"a", "b"}}),
             Contains("`runtime` (b) is not the beginning of `master` (a, b)"));
  CHECK_THAT(problem({.axes = {a, b}, .runtime = {"a"}, .between = MeshAxes{"b"}, .master = {"a"}, .replicate = {"b"}}),
             Contains("`between` (b) has an axis that `runtime` has not"));
  CHECK_THAT(problem({.axes = {a, b}, .master = {"a", "b", "a"}}), Contains("a list has axis a twice"));
  CHECK_THAT(problem({.axes = {a, b}, .master = {"a", "c"}}), Contains("the mesh has no axis c"));
  CHECK_THAT(problem({.axes = {a, b}, .order = {0, 1, 2, 3, 4, 5, 6, 6}, .master = {"a", "b"}}),
             Contains("the mesh's order of ranks names rank 6"));
  CHECK_THAT(problem({.axes = {a, b}, .order = {0, 1}, .master = {"a", "b"}}),
             Contains("the mesh's order of ranks has 2 of the job's 8"));
  const MeshLayout replicas_first{.axes = {a, b}, .runtime = {"b"}, .master = {"b"}, .replicate = {"a"}};
  CHECK(problem(replicas_first) == "nothing was thrown");
  CHECK_THAT(problem(replicas_first, true), Contains("list the axes of `master` first"));
  CHECK_THAT(problem_of({.group_size = 2, .mesh = replicas_first}, 8), Contains("does not go with shard.group_size"));
  CHECK_THAT(problem_of({.reshard_after_forward = Reshard::over(2), .mesh = replicas_first}, 8),
             Contains("does not go with a mesh of one's own"));
}

TEST_CASE("2A-2: without a group_size, small groups are the ranks of a host") {
  const auto size = [](const SchemeOptions& options, const std::vector<int>& hosts) {
    return with_host_groups(options, hosts).group_size;
  };
  const SchemeOptions hsdp{.strategy = Strategy::hsdp}, nested{.strategy = Strategy::nested};
  CHECK(size(hsdp, {0, 0, 0, 0, 1, 1, 1, 1}) == 4);
  CHECK(size(nested, {0, 0}) == 2);
  CHECK(size(nested, {0, 1, 2}) == 1);
  CHECK(size({.strategy = Strategy::hsdp, .group_size = 2}, {0, 0, 0, 0}) == 2);
  CHECK(size({.strategy = Strategy::zero3}, {0, 0, 1, 1}) == 0);
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1}, {0, 1, 0, 1}, {0, 0, 1, 1, 1}, {0, 0, 0, 1}})
    CHECK_THROWS_WITH(size(hsdp, hosts), Contains("the hosts have not equally many ranks, one after the other"));
}

TEST_CASE("groups are the same ones where axes cut alike, in whatever mesh") {
  const Mesh line({{"data", 8}}, 3, 8), grid({{"a", 2}, {"b", 4}}, 3, 8),
      turned({{"a", 2}, {"b", 4}}, 3, 8, {4, 5, 6, 7, 0, 1, 2, 3});
  CHECK(line.cut_over({"data"}) == grid.cut_over({"a", "b"}));
  CHECK(line.cut_over({"data"}) != grid.cut_over({"b", "a"}));
  CHECK(grid.cut_over({"a"}) != grid.cut_over({"b"}));
  CHECK(grid.cut_over({"a", "b"}) != turned.cut_over({"a", "b"}));
  CHECK(turned.ranks_along("b") == std::vector<int>{0, 1, 2, 3});
  CHECK(turned.coordinate("a") == 1);
}

TEST_CASE(
    "sizes that do not divide, and options that do not go together, are configuration errors that say what would") {
  CHECK_THAT(problem_of({.strategy = Strategy::hsdp}, 8), Contains("needs a shard.group_size"));
  CHECK_THAT(problem_of({.strategy = Strategy::nested, .group_size = 3}, 8),
             Contains("shard.group_size 3 does not divide the job's 8 ranks") && Contains("use one of 1, 2, 4, 8"));
  CHECK_THAT(problem_of({.strategy = Strategy::hsdp, .group_size = 16}, 8), Contains("does not divide"));
  CHECK_THAT(problem_of({.strategy = Strategy::zero3, .group_size = 2}, 8),
             Contains("does not go with shard.strategy \"zero3\""));
  CHECK_THAT(problem_of({.strategy = Strategy::zero3, .reshard_after_forward = Reshard::over(3)}, 8),
             Contains("shard.reshard_after_forward 3 does not divide"));
  CHECK_THAT(problem_of({.strategy = Strategy::nested, .group_size = 4, .reshard_after_forward = Reshard::over(2)}, 8),
             Contains("shard.reshard_after_forward = 2 does not go with shard.strategy \"nested\""));
  CHECK_THAT(problem_of({.strategy = Strategy::hsdp, .group_size = 4, .reshard_after_forward = Reshard::over(8)}, 8),
             Contains("shard.reshard_after_forward 8 does not divide shard.group_size 4"));
  CHECK_THROWS_AS(strategy_of("zero4"), Error);
}

}  // namespace zs::test::scheme_test
