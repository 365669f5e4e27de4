#include "model/train/run_dir/run_mark.h"

#include <fcntl.h>
#include <sys/file.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "model/data/output_file.h"
#include "model/train/run_dir/metrics.h"
#include "model/train/run_dir/run_dir.h"
#include "runtime/base/check.h"
#include "tests/train/run_folders.h"

namespace run_mark_test {

using namespace zs;
using test::InTempDir, test::refusal, test::write_checkpoint;
namespace fs = std::filesystem;

TEST_CASE("where another's folder has taken the place of checkpoints, or a link to it, nothing of it is removed") {
  InTempDir dir;
  for (const std::string run : {"a", "b"}) {
    create_run_dir({run, "exp", false}, run);
    for (const std::int64_t step : {3, 6, 9}) write_checkpoint(run, step);
  }
  RunMark mark = RunMark::find("b").value();
  fs::rename("b/checkpoints", "b/old");
  SECTION("a link") {
    fs::create_directory_symlink("../a/checkpoints", "b/checkpoints");
    CHECK_THROWS_WITH(check_reopen("b", mark), Catch::Contains("b/checkpoints"));
    CHECK_FALSE(mark.checkpoints().is_open());
  }
  SECTION("the folder itself") {
    fs::rename("a/checkpoints", "b/checkpoints");
    prune_checkpoints(mark.checkpoints(), 1, nullptr, mark.owner());
    CHECK_THROWS_WITH(remove_later_checkpoints(mark.checkpoints(), 3, nullptr, mark.owner()),
                      Catch::Contains("another run's checkpoint"));
    fs::rename("b/checkpoints", "a/checkpoints");
    fs::create_directory("b/checkpoints");
    for (const char* step : {"step-3", "step-6"}) {
      fs::copy(std::string("a/checkpoints/") + step, std::string("b/checkpoints/") + step);
      fs::rename(std::string("b/checkpoints/") + step, std::string("b/checkpoints/") + step + ".damaged");
    }
  }
  CHECK(refusal({"b", "exp", true}) == ExitCode::cannot_create);
  CHECK(list_checkpoints("a/checkpoints") == std::vector<std::int64_t>{3, 6, 9});
  fs::remove_all("b/checkpoints");
  fs::rename("b/old", "b/checkpoints");
  prune_checkpoints(mark.checkpoints(), 1, nullptr, mark.owner());
  CHECK(list_checkpoints("b/checkpoints") == std::vector<std::int64_t>{9});
}

TEST_CASE("a run whose folder is not in its place any more writes nothing to what is there now") {
  InTempDir dir;
  for (const char* run : {"a", "b"}) create_run_dir({run, "exp", false}, run);
  RunMark mark = RunMark::find("b").value();
  fs::rename("b", "moved");
  CHECK_THROWS_WITH(mark.begin("model.safetensors"), Catch::Contains("not where the run began"));
  fs::create_directory_symlink("a", "b");
  CHECK_THROWS_WITH(mark.begin("model.safetensors"), Catch::Contains("not where the run began"));
  CHECK_FALSE(RunMark::find("a")->has("model.safetensors"));
}

TEST_CASE("a run that an earlier version has begun gets its id when it goes on, and its checkpoints stay its own") {
  InTempDir dir;
  create_run_dir({"out", "exp", false}, "old");
  dir.write(std::string("out/") + RunMark::kFile, std::string(RunMark::kFirstLine) + "metrics.jsonl\nconfig.toml\n");
  for (const std::int64_t step : {3, 6}) write_checkpoint("out", step);
  RunMark mark = RunMark::find("out").value();
  CHECK(mark.id().empty());
  reopen_run_dir("out", mark, "new");
  const std::string id = mark.id();
  CHECK(id.size() == 32);
  CHECK(RunMark::find("out")->id() == id);
  CHECK(RunMark::find("out")->has("checkpoints/step-6"));
  prune_checkpoints(mark.checkpoints(), 1, nullptr, mark.owner());
  CHECK(list_checkpoints("out/checkpoints") == std::vector<std::int64_t>{6});
}

TEST_CASE("who may only read a run's files keeps its owner from nothing") {
  InTempDir dir;
  create_run_dir({"out", "exp", false}, "old");
  std::vector<File> readers;
  for (const char* name : {"out/metrics.jsonl", "out/zshard-run.txt"}) {
    readers.push_back(File::open(name, O_RDONLY));
    REQUIRE(::flock(readers.back().descriptor(), LOCK_EX | LOCK_NB) == 0);
    struct flock lock {};
    lock.l_type = F_RDLCK;
    REQUIRE(::fcntl(readers.back().descriptor(), F_OFD_SETLK, &lock) == 0);
    CHECK_FALSE(readers.back().is_locked());
  }
  CHECK_NOTHROW(MetricsLog("out/metrics.jsonl"));
  CHECK_FALSE(is_in_use("out/metrics.jsonl"));
  CHECK(refusal({"out", "exp", true}) == ExitCode::ok);
  readers.clear();
  const MetricsLog own("out/metrics.jsonl");
  CHECK(is_in_use("out/metrics.jsonl"));
  CHECK_THROWS_AS(MetricsLog("out/metrics.jsonl"), Error);
  CHECK(refusal({"out", "exp", true}) == ExitCode::cannot_create);
}

}  // namespace run_mark_test
