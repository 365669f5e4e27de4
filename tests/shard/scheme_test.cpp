#include "runtime/shard/scheme.h"

#include <catch2/catch.hpp>

#include <functional>
#include <set>

#include "runtime/base/check.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test {
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
  CHECK(row({.strategy = Strategy::grad_op, .reduce_every_micro_batch = false}, 8) == Row{8, 1, 1, 8, 1});
  CHECK(row({.strategy = Strategy::hsdp, .group_size = 4}, 8) == Row{4, 4, 4, 4, 2});
  CHECK(row({.strategy = Strategy::nested, .group_size = 4, .reduce_every_micro_batch = false}, 8) == Row{4, 4, 1, 8, 1});
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
    CHECK(with({.strategy = Strategy::zero3, .reshard_after_forward = Reshard::over(8)}) == with({.strategy = Strategy::zero3}));
  }
  for (const std::string& name : scheme_names()) CHECK(row(scheme_of(name, 1), 1) == std::vector<int>{1, 1, 1, 1, 1});
}

TEST_CASE("of nested groups the rank at position r in group g owns slice r * groups + g") {
  for (int rank = 0; rank < 8; ++rank) {
    const ShardScheme scheme({.strategy = Strategy::nested, .group_size = 4}, rank, 8);
    const int group = rank / 4, position = rank % 4;
    CHECK(scheme.slice(scheme.master) == Slice{position * 2 + group, 8});
    CHECK(scheme.slice(scheme.runtime) == Slice{position, 4});
    CHECK(scheme.ranks_over(scheme.runtime) == (group == 0 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{4, 5, 6, 7}));
    CHECK(scheme.ranks_over(scheme.master) == std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7});
  }
}

TEST_CASE("the ranks that share a whole are in the order of their slices, and agree on it") {
  for (const std::string& name : scheme_names()) {
    for (const int ranks : {1, 2, 4, 8, 12}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const ShardScheme scheme(scheme_of(name, ranks), rank, ranks);
        for (Axes ShardScheme::*role : {&ShardScheme::runtime, &ShardScheme::between, &ShardScheme::reduced, &ShardScheme::master}) {
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

TEST_CASE("with deterministic sums every scheme reduces over all ranks in their order, into its own part of the master slice") {
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

TEST_CASE("sizes that do not divide, and options that do not go together, are configuration errors that say what would") {
  CHECK_THAT(problem_of({.strategy = Strategy::hsdp}, 8), Contains("needs a shard.group_size"));
  CHECK_THAT(problem_of({.strategy = Strategy::nested, .group_size = 3}, 8),
             Contains("shard.group_size 3 does not divide the job's 8 ranks") && Contains("use one of 1, 2, 4, 8"));
  CHECK_THAT(problem_of({.strategy = Strategy::hsdp, .group_size = 16}, 8), Contains("does not divide"));
  CHECK_THAT(problem_of({.strategy = Strategy::zero3, .group_size = 2}, 8), Contains("does not go with shard.strategy \"zero3\""));
  CHECK_THAT(problem_of({.strategy = Strategy::zero3, .reshard_after_forward = Reshard::over(3)}, 8),
             Contains("shard.reshard_after_forward 3 does not divide"));
  CHECK_THAT(problem_of({.strategy = Strategy::hsdp, .group_size = 4, .reshard_after_forward = Reshard::over(2)}, 8),
             Contains("shard.reshard_after_forward = 2 does not go with shard.strategy \"hsdp\""));
  CHECK_THROWS_AS(strategy_of("zero4"), Error);
}

}  // namespace zs::test
