#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>

#include "model/train/plan/plan.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::omit_test {
namespace {

struct Row {
  const char* name;
  Omit omit;
  bool gathers, reduces;  // what still moves
};
constexpr std::array kRows = {Row{"none", Omit::nothing, true, true}, Row{"gathers", Omit::gathers, false, true},
                              Row{"reductions", Omit::reductions, true, false}, Row{"both", Omit::both, false, false}};

bool moves(const Communicator& group) { return std::string(group.transport()) == "local"; }

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

/// Rank r's shard is r + 1, and what it adds to the sums 10 (r + 1).
void exchange(World& world, const Row& row) {
  const auto device = Device::create(DeviceKind::cpu, {});
  GroupTable table(world, {row.omit});
  const ShardGroups groups(table, ShardScheme({}, world.rank(), 2), false);
  Stream& stream = device->stream(StreamRole::unshard);
  const float own = static_cast<float>(world.rank() + 1);
  std::array<float, 1> shard{own}, sum{-1};
  std::array<float, 2> full{-1, -1}, parts{10 * own, 10 * own};
  const auto buffer = [](auto& values) {
    return Buffer{values.data(), std::ssize(values), DType::f32, DeviceKind::cpu};
  };
  // What waits for nobody is done by rank 0 alone.
  if (row.gathers || world.rank() == 0) groups.gather->all_gather(stream, "u", buffer(shard), buffer(full));
  if (row.reduces || world.rank() == 0)
    groups.reduce->reduce_scatter(stream, "u", buffer(parts), buffer(sum), ReduceInto::overwrite);
  stream.synchronize();
  require(full == (row.gathers ? std::array<float, 2>{1, 2} : std::array<float, 2>{-1, -1}), "what was gathered");
  require(sum[0] == (row.reduces ? 30.0F : -1.0F), "what was reduced");
  table.compute().all_reduce(stream, "loss", buffer(shard), ReduceOp::sum);
  stream.synchronize();
  require(shard[0] == 3, "losses go between ranks as ever");
}

}  // namespace

TEST_CASE("2A-12: gathers, reductions or both may move nothing and wait for nobody, while all else moves") {
  for (const Row& row : kRows) {
    CAPTURE(row.name);
    CHECK_NOTHROW(run_local_world(2, {.timeout_s = 20}, [&](World& world) { exchange(world, row); }));
  }
}

TEST_CASE("2A-12: every group of a scheme belongs to one of the two") {
  SchemeOptions nested{.strategy = Strategy::nested, .group_size = 2};
  SchemeOptions hsdp{.strategy = Strategy::hsdp, .group_size = 2};
  for (const Row& row : kRows) {
    CAPTURE(row.name);
    CHECK_NOTHROW(run_local_world(4, {}, [&](World& world) {
      GroupTable table(world, {row.omit});
      const ShardGroups two_gathers(table, ShardScheme(nested, world.rank(), 4), true);
      require(moves(*two_gathers.gather) == row.gathers && moves(*two_gathers.gather_small) == row.gathers,
              "gathers of nested");
      require(moves(*two_gathers.reduce) == row.reduces && moves(*two_gathers.whole) == row.reduces,
              "reductions of nested");
      const ShardGroups two_sums(table, ShardScheme(hsdp, world.rank(), 4), true);
      require(moves(*two_sums.gather) == row.gathers, "gathers of hsdp");
      require(moves(*two_sums.reduce) == row.reduces && moves(*two_sums.finish) == row.reduces, "reductions of hsdp");
      require(moves(table.compute()), "losses");
    }));
  }
}

TEST_CASE("2A-12: a training that omits something has the memory of its plan, and counts what it would send") {
  Config config = tiny_config();
  config.shard.zero_copy = GENERATE(as<std::string>{}, "auto", "off");
  config.shard.layout = GENERATE(as<std::string>{}, "flat", "per_parameter");
  if (is_thinned_out()) return;
  const TinyResult whole = train_tiny(config, {.ranks = 2});
  const auto sent = [](const TinyResult& run) { return run.sent.parameter_bytes() + run.sent.gradient_bytes(); };
  for (const Row& row : kRows) {
    config.comm.omit = row.name;
    CAPTURE(row.name, config.shard.zero_copy, config.shard.layout);
    const TinyResult run = train_tiny(config, {.ranks = 2});
    const std::int64_t planned = make_plan(config, 0, 2).step_peak_bytes;
    for (const std::int64_t peak : run.peak_bytes) CHECK(peak == planned);
    if (config.shard.zero_copy == "off") CHECK(sent(run) == sent(whole));
    // The weights of the first step are those that were drawn.
    if (row.gathers)
      CHECK(std::equal(run.losses.begin(), run.losses.begin() + config.train.global_batch, whole.losses.begin()));
  }
}

}  // namespace zs::test::omit_test
