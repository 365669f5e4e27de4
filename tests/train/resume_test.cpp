#include "model/train/run_dir/resume.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "model/train/config/config_schema.h"
#include "model/train/run_dir/run_dir.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "tests/model/temp_dir.h"

namespace resume_test {

using namespace zs;
using test::TempDir;
namespace fs = std::filesystem;

namespace {

/// A whole checkpoint without ranks and tensors that its run has not written.
std::string write_foreign(const TempDir& dir, const std::string& folder, std::int64_t step) {
  CheckpointManifest manifest;
  manifest.step = step;
  dir.write(folder + "/manifest.json", to_text(manifest));
  return dir / folder;
}

/// The same as a run writes it.
void write_checkpoint(const TempDir& dir, const std::string& run, std::int64_t step) {
  if (!RunMark::find(dir / run)) create_run_dir({dir / run, "n", false}, "");
  RunMark::find(dir / run)->begin(checkpoint_name(step));
  write_foreign(dir, run + "/" + checkpoint_name(step), step);
}

ResumePoint found(const ResumeRequest& request) {
  const auto point = find_checkpoint(request);
  REQUIRE(point.has_value());
  return *point;
}

void clear_way(const ResumePoint& point, std::int64_t keep) {
  zs::clear_way(point, RunMark::find(point.run_dir).value(), keep);
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

}  // namespace

TEST_CASE("C5: latest is the newest committed checkpoint by its step, whatever else is there") {
  const TempDir dir;
  for (const std::int64_t step : {2, 9, 10}) write_checkpoint(dir, "a", step);
  dir.write("a/checkpoints/step-11.tmp/manifest.json", "x");
  dir.write("a/checkpoints/step-12.del/manifest.json", "x");
  dir.write("a/checkpoints/latest", "step-2");
  const ResumePoint point = found({"latest", dir / "a", "n", false});
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
  const ResumePoint point = found({"latest-valid", dir / "a", "n", false});
  CHECK(point.step == 2);
  CHECK(point.damaged == std::vector<std::int64_t>{10, 9});
  CHECK(list_checkpoints(dir / "a/checkpoints").size() == 3);
  clear_way(point, 1);
  CHECK(list_checkpoints(dir / "a/checkpoints") == std::vector<std::int64_t>{2});
  CHECK(fs::exists(dir / "a/checkpoints/step-10.damaged"));
  dir.write("a/checkpoints/step-2/manifest.json", "x");
  CHECK(refusal({"latest-valid", dir / "a", "n", false}) == ExitCode::checkpoint);
}

TEST_CASE("a run that goes on keeps what it kept, unless it is told otherwise") {
  const std::map<std::string, std::string> saved{{"config.checkpoint.keep", "3"},
                                                 {"config.checkpoint.keep_best", "true"}};
  Config config;
  keep_as_saved(config, saved);
  CHECK(config.checkpoint.keep == 3);
  CHECK(config.checkpoint.keep_best);
  Config told;
  told.given.keys = {{"checkpoint.keep", "c.toml:3"}, {"checkpoint.keep_best", "c.toml:4"}};
  const std::int64_t keep = told.checkpoint.keep;
  keep_as_saved(told, saved);
  CHECK(told.checkpoint.keep == keep);
  CHECK_FALSE(told.checkpoint.keep_best);
  CHECK(on_resume("checkpoint.keep_best") == OnResume::named);
}

TEST_CASE("the best checkpoint stays beside the newest") {
  const TempDir dir;
  for (const std::int64_t step : {2, 4, 6, 8, 10}) write_checkpoint(dir, "a", step);
  const ResumePoint point = found({"latest", dir / "a", "n", false});
  zs::clear_way(point, RunMark::find(dir / "a").value(), 2, 4);
  CHECK(list_checkpoints(dir / "a/checkpoints") == std::vector<std::int64_t>{4, 8, 10});
  prune_checkpoints(Folder::open(dir / "a/checkpoints"), 1, nullptr, {}, 10);
  CHECK(list_checkpoints(dir / "a/checkpoints") == std::vector<std::int64_t>{10});
}

TEST_CASE(
    "F04: what says nothing of a checkpoint's bytes is no damage: latest-valid stops there, and nothing is set aside") {
  const TempDir dir;
  for (const std::int64_t step : {2, 9}) write_checkpoint(dir, "a", step);
  const std::string manifest = dir / "a/checkpoints/step-9/manifest.json";
  const std::string text = test::read_file(manifest);
  std::string reason;
  SECTION("a newer version") {
    std::string body = text.substr(text.find("\"manifest\": ") + 12);
    body.resize(body.size() - 2);
    body.replace(body.find("\"version\":1"), 11, "\"version\":2");
    dir.write("a/checkpoints/step-9/manifest.json", fmt::format("{{\"checksum\": \"{:016x}\", \"manifest\": {}}}\n",
                                                                XXH3_64bits(body.data(), body.size()), body));
    reason = "format version 2, this program reads 1";
  }
  SECTION("a file that may not be read") {
    if (::geteuid() == 0) return;  // root may
    fs::permissions(manifest, fs::perms::none);
    reason = "Permission denied";
  }
  SECTION("no descriptor left") {
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit none{static_cast<rlim_t>(::open("/dev/null", O_RDONLY)), before.rlim_max};
    ::close(static_cast<int>(none.rlim_cur));
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    try {
      find_checkpoint({"latest", dir / "a", "n", false});
    } catch (const Error& error) {
      reason = error.what_happened();
    }
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK_THAT(reason, Catch::Contains("Too many open files"));
    return;
  }
  CHECK_THROWS_WITH(find_checkpoint({"latest-valid", dir / "a", "n", false}), Catch::Contains(reason));
  CHECK(list_checkpoints(dir / "a/checkpoints") == std::vector<std::int64_t>{2, 9});
}

TEST_CASE("a damaged checkpoint is set aside beside one that was set aside before") {
  const TempDir dir;
  for (const std::int64_t step : {2, 9}) write_checkpoint(dir, "a", step);
  dir.write("a/checkpoints/step-9.damaged/manifest.json", "earlier");
  dir.write("a/checkpoints/step-9/manifest.json", "x");
  clear_way(found({"latest-valid", dir / "a", "n", false}), 0);
  CHECK(test::read_file(dir / "a/checkpoints/step-9.damaged/manifest.json") == "earlier");
  CHECK(test::read_file(dir / "a/checkpoints/step-9.damaged-2/manifest.json") == "x");
}

TEST_CASE("F02: a checkpoint under a name of its own is gone on from, with or without others") {
  const TempDir dir;
  write_checkpoint(dir, "a", 9);
  fs::rename(dir / "a/checkpoints/step-9", dir / "a/checkpoints/best");
  const std::string best = dir / "a/checkpoints/best";
  const ResumePoint point = found({best, dir / "a", "n", false});
  CHECK(point.step == 9);
  CHECK(point.run_dir == dir / "a");
  clear_way(point, 1);
  CHECK(fs::exists(best));
  write_checkpoint(dir, "a", 12);
  CHECK(refusal({best, dir / "a", "n", false}) == ExitCode::cannot_create);
  clear_way(found({best, dir / "a", "n", true}), 1);
  CHECK(list_checkpoints(dir / "a/checkpoints").empty());
  CHECK(fs::exists(best));
}

TEST_CASE("F11: a folder that holds another step than its name says is refused, and never removed") {
  const TempDir dir;
  for (const std::int64_t step : {3, 6, 9}) write_checkpoint(dir, "a", step);
  const std::string root = dir / "a/checkpoints";
  fs::remove_all(root + "/step-9");
  fs::rename(root + "/step-6", root + "/step-9");
  CHECK_THROWS_WITH(CheckpointReader(root + "/step-9/"),
                    Catch::Contains("the folder of step 9 holds the checkpoint of step 6"));
  CHECK(refusal({root + "/step-9", dir / "a", "n", false}) == ExitCode::checkpoint);
  CHECK(refusal({"latest-valid", dir / "a", "n", false}) == ExitCode::checkpoint);
  const ResumePoint three = found({root + "/step-3", dir / "a", "n", true});
  CHECK_THROWS_WITH(clear_way(three, 1), Catch::Contains("step-9"));
  fs::rename(root + "/step-9", root + "/step-1");
  write_checkpoint(dir, "a", 9);
  clear_way(found({"latest", dir / "a", "n", false}), 1);
  CHECK(list_checkpoints(root) == std::vector<std::int64_t>{1, 9});
}

TEST_CASE(
    "only checkpoints that the run has written, and nothing that has come into them, are removed to keep few, or to go "
    "back") {
  const TempDir dir;
  for (const std::int64_t step : {2, 3, 4, 5}) write_checkpoint(dir, "a", step);
  write_foreign(dir, "a/checkpoints/step-1", 1);
  dir.write("a/checkpoints/step-3/notes.txt", "mine");
  write_foreign(dir, "a/checkpoints/step-7.del", 7);
  dir.write("a/checkpoints/step-4.tmp/notes.txt", "mine");
  clear_way(found({"latest", dir / "a", "n", false}), 1);
  CHECK(list_checkpoints(dir / "a/checkpoints") == std::vector<std::int64_t>{1, 3, 5});
  CHECK(fs::exists(dir / "a/checkpoints/step-7.del"));
  CHECK(fs::exists(dir / "a/checkpoints/step-4.tmp/notes.txt"));
  write_foreign(dir, "a/checkpoints/step-6", 6);
  write_foreign(dir, "a/checkpoints/mine", 1);
  const ResumePoint back = found({dir / "a/checkpoints/mine", dir / "a", "n", true});
  CHECK_THROWS_WITH(clear_way(back, 1), Catch::Contains("step-3/notes.txt"));
  CHECK(list_checkpoints(dir / "a/checkpoints") == std::vector<std::int64_t>{1, 3, 5, 6});
  fs::remove(dir / "a/checkpoints/step-3/notes.txt");
  CHECK_THROWS_WITH(clear_way(back, 1), Catch::Contains("step-6"));
}

TEST_CASE("a folder without a run's mark is none to go on in, and its checkpoints begin a new one") {
  const TempDir dir;
  const std::string three = write_foreign(dir, "a/checkpoints/step-3", 3);
  for (const char* what : {"latest", "latest-valid", "auto"}) {
    INFO(what);
    CHECK(refusal({what, dir / "a", "n", false}) == ExitCode::cannot_create);
    CHECK_THROWS_WITH(find_checkpoint({what, dir / "a", "n", true}), Catch::Contains("--resume " + three));
  }
  CHECK(found({three, "", "n", false}).run_dir.empty());
  CHECK(found({three, dir / "b", "n", false}).step == 3);
}

TEST_CASE("auto goes on where there is a checkpoint, and else says that the run is to start") {
  const TempDir dir;
  CHECK_FALSE(find_checkpoint({"auto", dir / "a", "n", false}).has_value());
  create_run_dir({dir / "a", "n", false}, "");
  CHECK_FALSE(find_checkpoint({"auto", dir / "a", "n", false}).has_value());
  CHECK_THROWS_WITH(find_checkpoint({"latest", dir / "a", "n", false}), Catch::Contains("--resume auto"));
  dir.write("a/checkpoints/step-3.tmp/rank-0.bin", "half");
  CHECK_FALSE(find_checkpoint({"auto", dir / "a", "n", false}).has_value());
  write_checkpoint(dir, "a", 3);
  CHECK(found({"auto", dir / "a", "n", false}).step == 3);
}

TEST_CASE("advice to who has nothing to go on from is what will be accepted") {
  const TempDir dir;
  const auto advice = [&](const std::string& run) {
    try {
      find_checkpoint({"latest", dir / run, "n", false});
    } catch (const Error& error) {
      return error.what_to_do();
    }
    return std::string();
  };
  CHECK_THAT(advice("none"), Catch::Contains("--resume auto"));
  dir.write("mine/config.toml", "mine");
  CHECK(advice("mine") == "set another run.dir");
  create_run_dir({dir / "a", "n", false}, "");
  RunMark::find(dir / "a")->begin("model.safetensors");
  dir.write("a/model.safetensors", "final");
  CHECK_THAT(advice("a"), Catch::Contains("--overwrite"));
  write_checkpoint(dir, "b", 3);
  dir.write("b/checkpoints/step-3/manifest.json", "x");
  CHECK_THROWS_WITH(find_checkpoint({"latest-valid", dir / "b", "n", false}), Catch::Contains("--overwrite"));
}

TEST_CASE("a folder that cannot be listed is told as that") {
  const TempDir dir;
  create_run_dir({dir / "a", "n", false}, "");
  dir.write("a/checkpoints", "no folder");
  CHECK_THROWS_WITH(find_checkpoint({"latest", dir / "a", "n", false}),
                    Catch::Contains("cannot be listed: Not a directory"));
}

TEST_CASE("what a save or a removal that was killed has left is not gone on from by its name") {
  const TempDir dir;
  write_checkpoint(dir, "a", 9);
  for (const char* suffix : {".tmp", ".del"}) {
    const std::string left = write_foreign(dir, std::string("a/checkpoints/step-9") + suffix, 9);
    CHECK(refusal({left, dir / "a", "n", true}) == ExitCode::checkpoint);
  }
}

TEST_CASE("a run's own configuration stands for the run's directory, unless another is named") {
  const TempDir dir;
  create_run_dir({dir / "a", "n", false}, "");
  const std::string own = dir / "a/config.toml";
  Config config;
  CHECK(run_dir_asked_for(config, own, "latest") == dir / "a");
  CHECK(run_dir_asked_for(config, own, "auto") == dir / "a");
  CHECK(run_dir_asked_for(config, own, "").empty());  // the next runs/NAME-N
  CHECK(run_dir_asked_for(config, own, dir / "b").empty());
  config.run.dir = "as/it/was";
  config.given.keys["run.dir"] = own + ":9";
  CHECK(run_dir_asked_for(config, own, "") == dir / "a");
  CHECK(run_dir_asked_for(config, dir / "other.toml", "latest") == "as/it/was");
  config.given.keys["run.dir"] = "--set run.dir=as/it/was";
  CHECK(run_dir_asked_for(config, own, "latest") == "as/it/was");
}

TEST_CASE("a named checkpoint goes on in its own run, unless the run is to be another") {
  const TempDir dir;
  for (const std::int64_t step : {2, 9}) write_checkpoint(dir, "a", step);
  const auto run_of = [&](const std::string& what, const std::string& run_dir) {
    return found({what, run_dir, "n", false}).run_dir;
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
  const ResumePoint point = found({two, dir / "a", "n", true});
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
  RunMark::find(dir / "a")->begin(checkpoint_name(11));
  const ResumePoint point = found({"latest", dir / "a", "n", false});
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
  CHECK(refusal({dir / "a/old/step-2", dir / "a", "n", false}) ==
        ExitCode::ok);  // that run.dir holds a run is told elsewhere
}

}  // namespace resume_test
