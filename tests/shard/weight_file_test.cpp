// A model's weights in safetensors files, over ranks.
#include "model/weights/weight_file.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "model/nn/batch_norm.h"
#include "model/nn/linear.h"
#include "model/sharding/fully_shard.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/named_weights.h"

namespace zs::test::weight_file_test {
namespace {

using Catch::Contains;

struct Net : Layer<Net> {
  explicit Net(std::int64_t classes) : head(make_child<Linear>("head", 7, classes)) {}
  Tensor forward(const Tensor& x) { return head(norm(body(x))); }
  Linear& body = make_child<Linear>("body", 5, 7);
  BatchNorm& norm = make_child<BatchNorm>("norm", 7);
  Linear& head;
};

struct Rank {
  explicit Rank(World& in, std::uint64_t seed, std::int64_t classes = 3)
      : world(in),
        device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        net(classes),
        model((fully_shard(net.body), fully_shard(net, context, world, {.shard = in_tests({.seed = seed})}))) {}

  Weights weights() {
    Weights all = weights_of(model.executor());
    device->synchronize();
    for (const Parameter* buffer : model.executor().ignored())
      all[buffer->name()].assign(buffer->value().as<float>(), buffer->value().as<float>() + buffer->numel());
    return all;
  }
  WeightFileReport load(const std::string& path, const WeightFileOptions& options = {}) {
    return load_safetensors(world, model.runtime(), path, options);
  }

  World& world;
  std::unique_ptr<Device> device;
  Context context;
  Net net;
  ShardedModel model;
};

/// Of 2 ranks, with this seed.
Weights saved(const std::string& path, std::uint64_t seed = 1) {
  return on_ranks(2, [&](World& world) {
    Rank rank(world, seed);
    save_safetensors(world, rank.model.runtime(), path);
    return rank.weights();
  })[0];
}

}  // namespace

TEST_CASE("weights and buffers go through a safetensors file to any number of ranks") {
  const TempDir folder;
  const std::string path = folder.path() + "/a.safetensors";
  const Weights want = saved(path);
  REQUIRE(want.size() == 8);
  const int ranks = GENERATE(1, 3);
  const auto got = on_ranks(ranks, [&](World& world) {
    Rank rank(world, 2);
    const Weights before = rank.weights();
    const WeightFileReport report = rank.load(path);
    return std::tuple(before, rank.weights(), report.missing.size() + report.unexpected.size());
  });
  for (const auto& [before, after, left_out] : got) {
    CHECK(before != want);
    CHECK(after == want);
    CHECK(left_out == 0);
  }
}

TEST_CASE("a new head keeps its own weights, and parameters may have other names in the file") {
  const TempDir folder;
  const std::string path = folder.path() + "/a.safetensors";
  const Weights want = saved(path);
  const auto world = make_single_world({});
  Rank rank(*world, 2, 9);
  const Weights before = rank.weights();
  const auto name = [](const std::string& own) { return own.starts_with("head.") ? "" : own; };
  CHECK_THAT(message_of([&] { rank.load(path, {.name_in_file = name}); }),
             Contains("unexpected head.bias, head.weight") && Contains("strict = false"));
  CHECK(rank.weights() == before);
  const WeightFileReport report = rank.load(path, {.name_in_file = name, .strict = false});
  CHECK(report.unexpected == std::vector<std::string>{"head.bias", "head.weight"});
  CHECK(report.missing.empty());
  const Weights after = rank.weights();
  for (const auto& [parameter, values] : after)
    CHECK(values == (parameter.starts_with("head.") ? before : want).at(parameter));
  const WeightFileReport renamed =
      rank.load(path, {.name_in_file = [](const std::string& own) { return "x." + own; }, .strict = false});
  CHECK(renamed.missing.size() == 8);
  CHECK(rank.weights() == after);
}

TEST_CASE("a file that does not fit is one error on every rank, and nothing is changed") {
  const TempDir folder;
  const std::string path = folder.path() + "/a.safetensors";
  saved(path);
  std::ofstream(folder.path() + "/bad.safetensors") << "nothing";
  const auto messages = on_ranks(3, [&](World& world) {
    Rank rank(world, 2, 9);
    const Weights before = rank.weights();
    std::vector<std::string> messages;
    messages.push_back(message_of([&] { rank.load(path); }));
    messages.push_back(message_of([&] { rank.load(folder.path() + "/none.safetensors"); }));
    messages.push_back(message_of([&] { rank.load(folder.path() + "/bad.safetensors"); }));
    messages.push_back(
        message_of([&] { save_safetensors(world, rank.model.runtime(), folder.path() + "/no/folder.safetensors"); }));
    messages.push_back(rank.weights() == before ? "" : "changed");
    const auto micro_batch = rank.model.evaluation();
    messages.push_back(message_of([&] { rank.load(path); }));
    return messages;
  });
  for (const auto& of_rank : messages) {
    CHECK_THAT(of_rank[0], Contains("tensor head.") && Contains("and parameter head."));
    CHECK_THAT(of_rank[1], Contains("none.safetensors"));
    CHECK_THAT(of_rank[2], Contains("bad.safetensors"));
    CHECK_THAT(of_rank[3], Contains("folder.safetensors"));
    CHECK(of_rank[4].empty());
    CHECK_THAT(of_rank[5], Contains("load_safetensors() within an evaluation"));
  }
}

}  // namespace zs::test::weight_file_test
