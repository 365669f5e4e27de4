#include "runtime/shard/checkpoint/checkpoint.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "model/train/run_dir/weights.h"
#include "model/train/session/session.h"
#include "runtime/shard/checkpoint/latest_checkpoint.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::checkpoint_test {
namespace {

namespace fs = std::filesystem;

constexpr int kStepLosses = 24;  // micro-batches of a step

Config small_config(const std::string& param = "f32") {
  Config config = tiny_config();
  config.model.layers = 2;
  config.precision.param = param;
  return config;
}

/// What steps 1 and 2 of the uninterrupted run, then steps 3 and 4, left.
const TinyResult& uninterrupted(const std::string& param) {
  static const TinyResult f32 = train_tiny(small_config("f32"), {.steps = 4}),
                          bf16 = train_tiny(small_config("bf16"), {.steps = 4});
  return param == "f32" ? f32 : bf16;
}

/// Two steps by `ranks`, saved in `folder`; the checkpoint's path.
std::string two_steps(const TempDir& folder, const Config& config, int ranks) {
  return train_tiny(config, {.ranks = ranks, .steps = 2, .checkpoints = folder.path()}).saved;
}

bool is_the_rest_of(const TinyResult& resumed, const TinyResult& whole) {
  return resumed.weights == whole.weights &&
         resumed.losses == std::vector<float>(whole.losses.begin() + 2 * kStepLosses, whole.losses.end()) &&
         resumed.grad_norms == std::vector<float>(whole.grad_norms.begin() + 2, whole.grad_norms.end());
}

std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = read_file(entry.path().string());
  return files;
}

}  // namespace

TEST_CASE("I2: parameters rounded at random go on from a checkpoint, bit for bit", "[checkpoint]") {
  Config config = small_config("bf16");
  config.precision.rounding = "stochastic";
  const TempDir folder;
  const TinyResult whole = train_tiny(config, {.steps = 4});
  CHECK(is_the_rest_of(train_tiny(config, {.ranks = 3, .steps = 4, .resume = two_steps(folder, config, 2)}), whole));
}

TEST_CASE("I2: a Llama's checkpoint goes on at another rank count, bit for bit", "[checkpoint]") {
  Config config = small_config(GENERATE(as<std::string>{}, "f32", "bf16"));
  choose_family(config, "llama");
  const TempDir folder;
  const TinyResult whole = train_tiny(config, {.steps = 4});
  CHECK(is_the_rest_of(train_tiny(config, {.ranks = 3, .steps = 4, .resume = two_steps(folder, config, 2)}), whole));
}

TEST_CASE("I2: save and load are as if nothing had been, bit for bit", "[checkpoint]") {
  const int ranks = GENERATE(1, 2, 3, 4, 8);
  const std::string param = GENERATE(as<std::string>{}, "f32", "bf16");
  CAPTURE(ranks, param);
  const TempDir folder;
  const std::string saved = two_steps(folder, small_config(param), ranks);
  CHECK(is_the_rest_of(train_tiny(small_config(param), {.ranks = ranks, .steps = 4, .resume = saved}),
                       uninterrupted(param)));
}

TEST_CASE("I2: saving every step changes nothing", "[checkpoint]") {
  const TempDir folder;
  const TinyResult run = train_tiny(small_config(), {.ranks = 2, .steps = 4, .checkpoints = folder.path()});
  CHECK(run.losses == uninterrupted("f32").losses);
  CHECK(run.weights == uninterrupted("f32").weights);
  CHECK(run.allocations.back() == 0);
  CHECK(list_checkpoints(folder.path()) == std::vector<std::int64_t>{1, 2, 3, 4});
  CHECK(latest_checkpoint(folder.path()) == step_folder(folder.path(), 4));
  CHECK(latest_checkpoint(folder.path() + "/none").empty());
}

TEST_CASE("I2, C6: another number of ranks goes on bit for bit", "[checkpoint]") {
  const int writers = GENERATE(1, 3, 4, 8);
  const TempDir folder;
  const std::string saved = two_steps(folder, small_config(), writers);
  for (const int readers : {1, 2, 3, 8}) {
    if (readers == writers) continue;
    CAPTURE(writers, readers);
    CHECK(is_the_rest_of(train_tiny(small_config(), {.ranks = readers, .steps = 4, .resume = saved}),
                         uninterrupted("f32")));
  }
}

TEST_CASE("I2: another sharding strategy goes on bit for bit", "[checkpoint]") {
  const std::vector<std::string> strategies = {"ddp", "nested", "hsdp", "zero1", "zero3"};
  const std::size_t writer = GENERATE(range(std::size_t{0}, std::size_t{4}));
  const auto config_of = [](const std::string& strategy) {
    Config config = small_config();
    config.shard.strategy = strategy;
    if (strategy == "hsdp" || strategy == "nested") config.shard.group_size = 2;
    return config;
  };
  const TempDir folder;
  const std::string saved = two_steps(folder, config_of(strategies[writer]), 4);
  CAPTURE(strategies[writer], strategies[writer + 1]);
  const TinyResult resumed = train_tiny(config_of(strategies[writer + 1]), {.ranks = 8, .steps = 4, .resume = saved});
  CHECK(is_the_rest_of(resumed, uninterrupted("f32")));
}

TEST_CASE("I2: another layout goes on bit for bit, whatever the dims, at the same or another number of ranks",
          "[checkpoint]") {
  const std::string writer = GENERATE(from_range(layout_names())), param = GENERATE(as<std::string>{}, "f32", "bf16");
  const int writers = GENERATE(2, 3);
  const auto config_of = [&](const std::string& layout) {
    Config config = small_config(param);
    choose_layout(config, layout);
    return config;
  };
  const TempDir folder;
  const std::string saved = two_steps(folder, config_of(writer), writers);
  for (const std::string& reader : layout_names()) {
    for (const int readers : {3, 4}) {
      if (is_thinned_out()) continue;
      CAPTURE(writer, writers, reader, readers, param);
      const TinyResult resumed = train_tiny(config_of(reader), {.ranks = readers, .steps = 4, .resume = saved});
      CHECK(is_the_rest_of(resumed, uninterrupted(param)));
    }
  }
}

TEST_CASE("I2: another layout and another sharding strategy go on bit for bit", "[checkpoint]") {
  const std::vector<std::string> strategies = {"hsdp", "nested", "zero1"};
  const std::string writer = GENERATE_COPY(from_range(strategies)),
                    layout = GENERATE(as<std::string>{}, "last dim", "small whole");
  const auto config_of = [](const std::string& strategy, const std::string& layout_name) {
    Config config = small_config();
    config.shard.strategy = strategy;
    if (strategy == "hsdp" || strategy == "nested") config.shard.group_size = 2;
    choose_layout(config, layout_name);
    return config;
  };
  const TempDir folder;
  const std::string saved = two_steps(folder, config_of(writer, layout), 4);
  for (const std::string& reader : strategies) {
    CAPTURE(writer, reader, layout);
    const TinyResult resumed =
        train_tiny(config_of(reader, "per_parameter"), {.ranks = 4, .steps = 4, .resume = saved});
    CHECK(is_the_rest_of(resumed, uninterrupted("f32")));
  }
}

TEST_CASE("what a rank has of a tensor that is cut on a later dim is one segment", "[checkpoint]") {
  Config config = small_config();
  choose_layout(config, "last dim");
  const TempDir folder;
  const CheckpointReader reader(two_steps(folder, config, 3));
  const auto tensor = reader.find("blocks.1.mlp.up.weight", "master").value();  // (128, 32)
  std::vector<SavedSegment> found;
  for (const CheckpointFile& file : reader.manifest().files) {
    for (const SavedSegment& segment : file.segments) {
      if (segment.tensor == tensor) found.push_back(segment);
    }
  }
  REQUIRE(found.size() == 3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(found[rank].begin == static_cast<std::int64_t>(rank) * 11);
    CHECK(found[rank].count == (rank == 2 ? 10 : 11));
    CHECK(found[rank].runs == 128);
    CHECK(found[rank].stride == 32);
  }
}

TEST_CASE("whole parameters are in a checkpoint once, and shared out among the ranks", "[checkpoint]") {
  Config config = small_config();
  choose_layout(config, "per_parameter");
  config.shard.min_shard_bytes = 1 << 20;  // everything
  const TempDir folder;
  const CheckpointReader reader(two_steps(folder, config, 4));
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = 0, all = 0, elements = 0;
  for (const CheckpointTensor& tensor : reader.manifest().tensors) elements += tensor.shape.numel();
  for (const CheckpointFile& file : reader.manifest().files) {
    std::int64_t own = 0;
    for (const SavedSegment& segment : file.segments) own += segment.elems();
    least = std::min(least, own);
    most = std::max(most, own);
    all += own;
  }
  CHECK(all == elements);
  CHECK(least * 2 > most);
}

TEST_CASE("I2: another cut into units and another policy go on bit for bit", "[checkpoint]") {
  const TempDir folder;
  const std::string saved = two_steps(folder, small_config(), 3);
  Config other = small_config();
  other.shard.units = "model";
  other.shard.reshard_after_forward = false;
  CHECK(is_the_rest_of(train_tiny(other, {.ranks = 2, .steps = 4, .resume = saved}), uninterrupted("f32")));
}

TEST_CASE("I2: a checkpoint of f32 parameters goes on in bf16, for the state is f32 in both", "[checkpoint]") {
  const TempDir folder;
  const std::string saved = two_steps(folder, small_config(), 2);
  const TinyResult one = train_tiny(small_config("bf16"), {.ranks = 1, .steps = 4, .resume = saved});
  CHECK(train_tiny(small_config("bf16"), {.ranks = 4, .steps = 4, .resume = saved}).weights == one.weights);
}

TEST_CASE("C9: what is loaded and saved again has the same bytes", "[checkpoint]") {
  const int ranks = GENERATE(1, 3);
  const std::string layout = GENERATE(as<std::string>{}, "flat", "zero-copy", "last dim", "small whole");
  const TempDir first, second;
  Config config = small_config();
  choose_layout(config, layout);
  const std::string saved = two_steps(first, config, ranks);
  std::string again;
  std::vector<CheckpointInfo> loaded(static_cast<std::size_t>(ranks));
  run_local_world(ranks, {.timeout_s = 60}, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {});
    Session session(*device, world, config);
    const TrainingState state{world, session.runtime().executor(), session.optimizer()};
    const CheckpointInfo info = load(state, saved);
    loaded[static_cast<std::size_t>(world.rank())] = info;
    const std::string path = save(state, second.path(), info);
    if (world.rank() == 0) again = path;
  });
  for (const CheckpointInfo& info : loaded) {
    CHECK(info.step == 2);
    CHECK(info.attributes.at("a key") == "a value");
  }
  CHECK(contents(again) == contents(saved));
}

TEST_CASE("the weights of a checkpoint can be loaded without an optimizer", "[checkpoint]") {
  const int ranks = GENERATE(1, 3);
  const TempDir temp;
  Config config = small_config();
  choose_layout(config, GENERATE(as<std::string>{}, "flat", "zero-copy", "last dim"));
  const std::string saved = two_steps(temp, config, 2);
  std::vector<std::string> found(static_cast<std::size_t>(ranks));
  run_local_world(ranks, {.timeout_s = 60}, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {});
    Session whole(*device, world, config), weights(*device, world, config, Session::Use::inference);
    load({world, whole.runtime().executor(), whole.optimizer()}, saved);
    const CheckpointInfo info = load_weights(world, weights.runtime().executor(), saved);
    const std::string wanted = save_weights(whole.runtime().executor());
    const bool is_same = save_weights(weights.runtime().executor()) == wanted;
    found[static_cast<std::size_t>(world.rank())] =
        fmt::format("{} {} {}", info.step, info.attributes.at("a key"), is_same ? "same weights" : "other weights");
  });
  for (const std::string& rank : found) CHECK(rank == "2 a value same weights");
}

TEST_CASE("a whole tensor can be read by one process, whoever wrote it", "[checkpoint]") {
  const TempDir one, three;
  Config other = small_config();
  choose_layout(other, GENERATE(from_range(layout_names())));
  CheckpointReader whole(two_steps(one, small_config(), 1)), cut(two_steps(three, other, 3));
  for (const CheckpointTensor& tensor : whole.manifest().tensors) {
    std::vector<float> a(static_cast<std::size_t>(tensor.shape.numel()), 1.0f), b(a.size(), 2.0f);
    whole.read({{whole.find(tensor.parameter, tensor.kind).value(), 0, Buffer{a.data(), tensor.shape.numel()}}});
    cut.read({{cut.find(tensor.parameter, tensor.kind).value(), 0, Buffer{b.data(), tensor.shape.numel()}}});
    CHECK(a == b);
  }
  cut.verify();
}

TEST_CASE("C6: more ranks than elements leave some files empty, and they load", "[checkpoint]") {
  // 8 ranks of a model whose smallest unit, the final norm, has fewer 64-byte lines than that
  Config config = small_config();
  config.model.width = 16;
  const TempDir folder;
  const std::string saved = two_steps(folder, config, 8);
  const TinyResult whole = train_tiny(config, {.steps = 4});
  CHECK(is_the_rest_of(train_tiny(config, {.ranks = 3, .steps = 4, .resume = saved}), whole));
}

}  // namespace zs::test::checkpoint_test
