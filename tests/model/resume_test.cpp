#include "model/train/resume.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "model/train/config_schema.h"
#include "runtime/shard/checkpoint_folder.h"
#include "tests/model/temp_dir.h"

using namespace zs;
using test::TempDir;
namespace fs = std::filesystem;

namespace {

/// A whole checkpoint without ranks and tensors.
void write_checkpoint(const TempDir& dir, const std::string& run, std::int64_t step) {
  CheckpointManifest manifest;
  manifest.step = step;
  dir.write(fmt::format("{}/checkpoints/step-{}/manifest.json", run, step), to_text(manifest));
  dir.write(run + "/config.toml", "");
}

ExitCode refusal(const ResumeRequest& request) {
  try {
    find_checkpoint(request);
  } catch (const Error& error) {
    UNSCOPED_INFO(error.what());
    return error.code();
  }
  return ExitCode::ok;
}

const DataFacts kData{.train_tokens = 1000, .train_digest = "0a", .validation_digest = "none", .train_files = "a.txt"};

Config example() {
  Config config;
  config.train.steps = 10;
  return config;
}

}  // namespace

TEST_CASE("C5: latest is the newest committed checkpoint by its step, whatever else is there") {
  const TempDir dir;
  for (const std::int64_t step : {2, 9, 10}) write_checkpoint(dir, "a", step);
  dir.write("a/checkpoints/step-11.tmp/manifest.json", "x");
  dir.write("a/checkpoints/step-12.del/manifest.json", "x");
  dir.write("a/checkpoints/latest", "step-2");
  const ResumePoint point = find_checkpoint({"latest", dir / "a", "n", false});
  CHECK(point.step == 10);
  CHECK(point.checkpoint == dir / "a/checkpoints/step-10");
  CHECK(point.run_dir == dir / "a");
  CHECK(refusal({"latest", dir / "b", "n", false}) == ExitCode::checkpoint);
  CHECK(refusal({dir / "a/checkpoints/step-3", "", "n", false}) == ExitCode::checkpoint);
  CHECK(refusal({dir / "a/config.toml", "", "n", false}) == ExitCode::checkpoint);
}

TEST_CASE("C3: latest-valid passes over damaged ones, and clearing the way sets them aside") {
  const TempDir dir;
  for (const std::int64_t step : {2, 9, 10}) write_checkpoint(dir, "a", step);
  dir.write("a/checkpoints/step-10/manifest.json", "x");
  fs::remove(dir / "a/checkpoints/step-9/manifest.json");
  const ResumePoint point = find_checkpoint({"latest-valid", dir / "a", "n", false});
  CHECK(point.step == 2);
  CHECK(point.damaged == std::vector<std::int64_t>{10, 9});
  CHECK(list_checkpoints(dir / "a/checkpoints").size() == 3);
  clear_way(point, 1);
  CHECK(list_checkpoints(dir / "a/checkpoints") == std::vector<std::int64_t>{2});
  CHECK(fs::exists(dir / "a/checkpoints/step-10.damaged"));
  dir.write("a/checkpoints/step-2/manifest.json", "x");
  CHECK(refusal({"latest-valid", dir / "a", "n", false}) == ExitCode::checkpoint);
}

TEST_CASE("a named checkpoint goes on in its own run, unless the run is to be another") {
  const TempDir dir;
  for (const std::int64_t step : {2, 9}) write_checkpoint(dir, "a", step);
  const auto run_of = [&](const std::string& what, const std::string& run_dir) {
    return find_checkpoint({what, run_dir, "n", false}).run_dir;
  };
  CHECK(run_of(dir / "a/checkpoints/step-9", "") == dir / "a");
  CHECK(run_of(dir / "a/checkpoints/step-9/", dir / "a/") == dir / "a");
  CHECK(run_of(dir / "a", "") == dir / "a");
  CHECK(run_of(dir / "a/checkpoints/step-9", dir / "b").empty());
  CHECK(run_of(dir / "a", dir / "b").empty());
  fs::rename(dir / "a/checkpoints/step-2", dir / "step-2");
  CHECK(run_of(dir / "step-2", "").empty());
}

TEST_CASE("going back within a run must be asked for, and removes what came after") {
  const TempDir dir;
  for (const std::int64_t step : {2, 9, 10}) write_checkpoint(dir, "a", step);
  const std::string two = dir / "a/checkpoints/step-2";
  CHECK(refusal({two, "", "n", false}) == ExitCode::cannot_create);
  CHECK(refusal({two, dir / "b", "n", false}) == ExitCode::ok);
  const ResumePoint point = find_checkpoint({two, dir / "a", "n", true});
  CHECK(list_checkpoints(dir / "a/checkpoints").size() == 3);
  clear_way(point, 1);
  CHECK(list_checkpoints(dir / "a/checkpoints") == std::vector<std::int64_t>{2});
}

TEST_CASE("P2: going on removes what a save that was killed left to remove") {
  const TempDir dir;
  for (const std::int64_t step : {2, 3, 9, 10}) write_checkpoint(dir, "a", step);
  const std::string root = dir / "a/checkpoints";
  fs::rename(root + "/step-2", root + "/step-2.del");
  fs::create_directory(root + "/step-11.tmp");
  const ResumePoint point = find_checkpoint({"latest", dir / "a", "n", false});
  clear_way(point, 0);
  CHECK(list_checkpoints(root) == std::vector<std::int64_t>{3, 9, 10});
  CHECK_FALSE(fs::exists(root + "/step-2.del"));
  CHECK_FALSE(fs::exists(root + "/step-11.tmp"));
  clear_way(point, 2);
  CHECK(list_checkpoints(root) == std::vector<std::int64_t>{9, 10});
}

TEST_CASE("a new run does not overwrite the folder of the checkpoint that it begins from") {
  const TempDir dir;
  write_checkpoint(dir, "a", 2);
  fs::create_directory(dir / "a/old");
  fs::rename(dir / "a/checkpoints/step-2", dir / "a/old/step-2");
  CHECK(refusal({dir / "a/old/step-2", dir / "a", "n", true}) == ExitCode::cannot_create);
  CHECK(refusal({dir / "a/old/step-2", dir / "b", "n", true}) == ExitCode::ok);
  CHECK(refusal({dir / "a/old/step-2", dir / "a", "n", false}) == ExitCode::ok);  // that run.dir holds a run is told elsewhere
}

TEST_CASE("C8: each key may change, may change and is named, or may not") {
  const auto saved = run_attributes(example(), kData);
  CHECK(compare_runs(saved, saved, "c").empty());
  const auto with = [&](const std::string& key, const std::string& value) {
    auto now = saved;
    REQUIRE(now.contains(key));
    now[key] = value;
    return now;
  };
  CHECK(compare_runs(saved, with("config.train.lr", "0.5"), "c") == std::vector<std::string>{"train.lr 0.0006 -> 0.5"});
  CHECK(compare_runs(saved, with("config.train.steps", "20"), "c") == std::vector<std::string>{"train.steps 10 -> 20"});
  CHECK(compare_runs(saved, with("data.train_digest", "0b"), "c") ==
        std::vector<std::string>{"data.train_digest 0a -> 0b (it is other data)"});
  CHECK(compare_runs(saved, with("data.validation_digest", "0b"), "c").size() == 1);
  CHECK(compare_runs(saved, with("data.train_files", "b.txt"), "c") == std::vector<std::string>{"data.train_files a.txt -> b.txt"});
  for (const char* key : {"config.data.token_bytes", "config.comm.ranks", "config.shard.units", "config.run.dir", "config.checkpoint.every",
                          "config.data.train", "config.name"})
    CHECK(compare_runs(saved, with(key, "other"), "c").empty());
  std::set<std::string> refused;
  for (const auto& [key, value] : saved) {
    try {
      compare_runs(saved, with(key, "other"), "c");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::config);
      CHECK_THAT(error.what_happened(), Catch::Contains(value + " -> other"));
      refused.insert(key);
    }
  }
  CHECK(refused == std::set<std::string>{"config.data.kind", "config.model.activation", "config.model.context", "config.model.family",
                                         "config.model.heads", "config.model.hidden", "config.model.kv_heads", "config.model.layers",
                                         "config.model.rotary_base", "config.model.tied_head", "config.model.vocab", "config.model.width",
                                         "config.train.beta1", "config.train.beta2", "config.train.eps", "config.train.global_batch",
                                         "config.train.seed", "config.train.sequence", "data.train_tokens"});
}

TEST_CASE("a key that the program which saved did not know counts as unchanged") {
  auto saved = run_attributes(example(), kData);
  const auto now = saved;
  saved.erase("config.train.seed");
  saved["config.train.gone"] = "1";
  CHECK(compare_runs(saved, now, "c").empty());
}
