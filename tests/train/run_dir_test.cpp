#include "model/train/run_dir/run_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "model/data/output_file.h"
#include "model/train/run_dir/metrics.h"
#include "runtime/base/check.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "tests/code_in_child.h"
#include "tests/file_limit.h"
#include "tests/train/run_folders.h"

namespace run_dir_test {

using namespace zs;
using test::InTempDir, test::refusal, test::write_checkpoint;
namespace fs = std::filesystem;

namespace {

/// Runs `start(i)` on `count` threads that leave one line together; their results.
std::vector<std::string> start_together(int count, const std::function<std::string(int)>& start) {
  std::vector<std::string> results(static_cast<std::size_t>(count));
  std::barrier line(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      line.arrive_and_wait();
      results[static_cast<std::size_t>(i)] = start(i);
    });
  for (auto& thread : threads) thread.join();
  return results;
}

void own_file(const std::string& dir, const std::string& name) {
  RunMark mark = RunMark::find(dir).value();
  mark.begin(name);
  write_file_atomically(dir + "/" + name, "of the run");
  mark.wrote(name);
}

}  // namespace

TEST_CASE("the default directory takes the next free number") {
  InTempDir dir;
  CHECK(create_run_dir({"", "exp", false}, "a = 1\n") == "runs/exp-1");
  CHECK(create_run_dir({"", "exp", false}, "") == "runs/exp-2");
  fs::create_directories("runs/exp-9");
  for (const char* other : {"exp-x", "exp-12x", "exp-99999999999999999999", "other-50", "exp--3"})
    fs::create_directory(fs::path("runs") / other);
  CHECK(create_run_dir({"", "exp", false}, "") == "runs/exp-10");
  CHECK(create_run_dir({"", "exp-10", false}, "") == "runs/exp-10-1");
  CHECK(test::read_file("runs/exp-1/config.toml") == "a = 1\n");
  CHECK(test::read_file("runs/exp-1/metrics.jsonl").empty());
  CHECK(fs::exists("runs/exp-1/metrics.jsonl"));
}

TEST_CASE("starts at the same moment get directories of their own") {
  InTempDir dir;
  // Several rounds from one starting line, so that some do meet between looking for a number and taking it.
  constexpr int kStarts = 4, kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    const auto starts = start_together(kStarts, [&](int) {
      return create_run_dir({"", fmt::format("exp{}", round), false}, "x");
    });
    CHECK(std::set<std::string>(starts.begin(), starts.end()).size() == kStarts);
  }
}

TEST_CASE("of several starts in one named directory exactly one wins") {
  InTempDir dir;
  constexpr int kStarts = 4, kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    const std::string path = fmt::format("a/b{}", round);
    const auto starts = start_together(kStarts, [&](int) {
      try {
        return create_run_dir({path, "exp", false}, "x");
      } catch (const Error& error) {
        return std::string(error.code() == ExitCode::cannot_create ? "refused" : "wrong code");
      }
    });
    CHECK(std::count(starts.begin(), starts.end(), path) == 1);
    CHECK(std::count(starts.begin(), starts.end(), "refused") == kStarts - 1);
    CHECK(fs::exists(path + "/config.toml"));
  }
}

TEST_CASE("a named directory is made with its parents, or used when it is empty of runs") {
  InTempDir dir;
  CHECK(create_run_dir({"deep/er/run/", "exp", false}, "x") == "deep/er/run/");
  CHECK(fs::exists("deep/er/run/config.toml"));
  dir.write("mine/notes.txt", "keep");
  CHECK(create_run_dir({dir / "mine", "exp", false}, "x") == dir / "mine");
  CHECK(test::read_file("mine/notes.txt") == "keep");
}

TEST_CASE("a named directory that holds a run is refused and left as it is, and the advice is what would be accepted") {
  InTempDir dir;
  create_run_dir({"old", "exp", false}, "old");
  const std::size_t before = dir.entries();
  CHECK(refusal({"old", "exp", false}) == ExitCode::cannot_create);
  CHECK_THROWS_WITH(
      check_run_dir({"old", "exp", false}),
      "the run directory already holds a run (old): choose another run.dir, or add --resume auto or --overwrite");
  write_checkpoint("old", 3);
  CHECK_THROWS_WITH(
      check_run_dir({"old", "exp", false}),
      "the run directory already holds a run (old): choose another run.dir, or add --resume latest or --overwrite");
  CHECK_THROWS_AS(check_run_dir({"old", "exp", false, true}), Error);
  fs::remove_all("old/checkpoints");
  own_file("old", "model.safetensors");
  CHECK_THROWS_WITH(check_run_dir({"old", "exp", false}),
                    "the run directory already holds a run (old): choose another run.dir, or add --overwrite");
  CHECK_THROWS_AS(check_run_dir({"old", "exp", false, true}), Error);
  dir.write("old/model.safetensors", "of somebody else");
  CHECK_THROWS_WITH(check_run_dir({"old", "exp", false}),
                    "the run directory already holds a run (old): choose another run.dir");
  CHECK(test::read_file("old/config.toml") == "old");
  CHECK(dir.entries() == before + 1);
}

TEST_CASE("what no run wrote is in the way by its name, and stays, with or without overwrite") {
  InTempDir dir;
  const auto file = GENERATE(as<std::string>(), "config.toml", "metrics.jsonl", "model.safetensors", "zshard-run.txt",
                             "checkpoints/best.pt", "checkpoints/hf/pytorch_model.bin",
                             "checkpoints/step-3/manifest.json", "flight/rank-0.txt", "checkpoints", "flight");
  dir.write("mine/" + file, "precious");
  const std::size_t before = dir.entries();
  for (const bool overwrite : {false, true}) {
    CHECK(refusal({"mine", "exp", overwrite}) == ExitCode::cannot_create);
    CHECK_THROWS_WITH(check_run_dir({"mine", "exp", overwrite, true}),
                      Catch::Contains("mine/" + file.substr(0, file.find('/', 12))));
  }
  CHECK(test::read_file("mine/" + file) == "precious");
  CHECK(dir.entries() == before);
}

TEST_CASE("links and pipes are in the way, and an empty folder for checkpoints is not") {
  InTempDir dir;
  fs::create_directory("mine");
  SECTION("a link to nothing") { fs::create_symlink("nowhere", "mine/metrics.jsonl"); }
  SECTION("a link to a folder") { fs::create_symlink("..", "mine/checkpoints"); }
  SECTION("a pipe") { REQUIRE(::mkfifo("mine/config.toml", 0600) == 0); }
  SECTION("a linked mark") {
    dir.write("mark", RunMark::kFirstLine);
    fs::create_symlink("../mark", std::string("mine/") + RunMark::kFile);
  }
  const std::size_t before = dir.entries();
  CHECK(refusal({"mine", "exp", true}) == ExitCode::cannot_create);
  CHECK(dir.entries() == before);
  fs::create_directories("free/checkpoints");
  CHECK(refusal({"free", "exp", false}) == ExitCode::ok);
}

TEST_CASE("overwrite replaces what the run wrote and keeps others") {
  InTempDir dir;
  create_run_dir({"old", "exp", false}, "old");
  own_file("old", "model.safetensors");
  for (const std::int64_t step : {3, 9, 12}) write_checkpoint("old", step);
  fs::rename("old/checkpoints/step-12", "old/checkpoints/step-12.damaged-2");
  dir.write("old/checkpoints/step-15.tmp/rank-0.bin", "half");
  RunMark::find("old")->begin("checkpoints/step-15");
  for (const char* file : {"notes.txt", "checkpoints/best.pt", "checkpoints/best/manifest.json", "config.toml.1-x.tmp"})
    dir.write(std::string("old/") + file, "mine");
  dir.write("old/model.safetensors.99999999-0.tmp", "left by a run that was killed");
  CHECK(refusal({"old", "exp", true}) == ExitCode::ok);
  CHECK(test::read_file("old/config.toml") == "text");
  CHECK(test::read_file("old/metrics.jsonl").empty());
  CHECK_FALSE(fs::exists("old/model.safetensors"));
  CHECK_FALSE(fs::exists("old/model.safetensors.99999999-0.tmp"));
  for (const char* gone : {"step-3", "step-9", "step-12.damaged-2", "step-15.tmp"})
    CHECK_FALSE(fs::exists(fs::path("old/checkpoints") / gone));
  for (const char* file : {"notes.txt", "checkpoints/best.pt", "checkpoints/best/manifest.json", "config.toml.1-x.tmp"})
    CHECK(test::read_file(std::string("old/") + file) == "mine");
  CHECK_FALSE(RunMark::find("old")->has("checkpoints/step-3"));
}

TEST_CASE("what has taken the place of a run's own, or come into it, is not overwritten, and nothing else is then") {
  InTempDir dir;
  create_run_dir({"old", "exp", false}, "old");
  own_file("old", "model.safetensors");
  for (const std::int64_t step : {3, 9}) write_checkpoint("old", step);
  std::string named = "old/";
  SECTION("its configuration") { dir.write(named += "config.toml", "my own notes"); }
  SECTION("its weights") { dir.write(named += "model.safetensors", "my own weights"); }
  SECTION("its metrics") { dir.write(named += "metrics.jsonl", "my own notes\n"); }
  SECTION("a link in place of its weights") {
    fs::remove("old/model.safetensors");
    fs::create_symlink("../mine", named += "model.safetensors");
  }
  SECTION("a file in a checkpoint") { dir.write(named += "checkpoints/step-3/notes.txt", "mine"); }
  SECTION("a folder in a checkpoint") { fs::create_directory(named += "checkpoints/step-3/eval"); }
  SECTION("a checkpoint of another step") {
    fs::remove_all("old/checkpoints/step-9");
    fs::rename("old/checkpoints/step-3", named += "checkpoints/step-9");
  }
  SECTION("a checkpoint that the run has not written") {
    dir.write((named += "checkpoints/step-5") + "/manifest.json", "of another run");
  }
  const std::size_t before = dir.entries();
  CHECK_THROWS_WITH(create_run_dir({"old", "exp", true}, "new"), Catch::Contains(named));
  CHECK(dir.entries() == before);
}

TEST_CASE("a run that was killed before its first checkpoint may be started again, wherever it was killed") {
  InTempDir dir;
  const RunDirRequest again{"out", "exp", false, true};
  SECTION("after it began") { create_run_dir({"out", "exp", false}, "old"); }
  SECTION("while it made its mark") { dir.write(std::string("out/") + RunMark::kFile, "zshard r"); }
  SECTION("while it wrote to its mark") {
    create_run_dir({"out", "exp", false}, "old");
    dir.write(std::string("out/") + RunMark::kFile,
              std::string(RunMark::kFirstLine) + "metrics.jsonl\nconfig.toml\nconfi");
  }
  SECTION("within its first save") {
    create_run_dir({"out", "exp", false}, "old");
    RunMark::find("out")->begin("checkpoints/step-5");
    dir.write("out/checkpoints/step-5.tmp/rank-0.bin", "half");
  }
  CHECK(create_run_dir(again, "new") == "out");
  CHECK(test::read_file("out/config.toml") == "new");
  CHECK_FALSE(fs::exists("out/checkpoints/step-5.tmp"));
  CHECK(RunMark::find("out")->is_own_file("config.toml"));
}

TEST_CASE("a start that the disk ends leaves nothing, wherever that is") {
  InTempDir dir;
  const auto size = GENERATE(0, 10, 55, 70, 80);  // within the mark's lines
  {
    const test::FileLimit limit(static_cast<rlim_t>(size));
    const ExitCode code = refusal({"deep/out", "exp", false});
    CHECK((code == ExitCode::io || code == ExitCode::cannot_create));
  }
  CHECK(dir.entries() == 0);
  CHECK(refusal({"deep/out", "exp", false}) == ExitCode::ok);
}

TEST_CASE("the root of all files is no run directory") {
  for (const char* root : {"/", "//", "/.", "/tmp/.."}) {
    INFO(root);
    CHECK_THROWS_WITH(check_run_dir({root, "exp", false}), Catch::Contains("root of all files"));
  }
}

TEST_CASE("modes are as the umask says, but that the owner can use what it made") {
  InTempDir dir;
  const auto mode = [](const std::string& path) {
    struct stat status {};
    REQUIRE(::lstat(path.c_str(), &status) == 0);
    return status.st_mode & 07777;
  };
  for (const mode_t mask : {mode_t{0}, mode_t{022}, mode_t{077}, mode_t{0777}}) {
    const mode_t before = ::umask(mask);
    const std::string run = fmt::format("a{}/run", mask);
    const ExitCode code = refusal({run, "exp", false});
    ::umask(before);
    REQUIRE(code == ExitCode::ok);
    CHECK(mode(run) == (0700 | (0777 & ~mask)));
    CHECK(mode(fs::path(run).parent_path()) == (0700 | (0777 & ~mask)));
    for (const char* file : {"config.toml", "metrics.jsonl", RunMark::kFile})
      CHECK(mode(run + "/" + file) == (0600 | (0666 & ~mask)));
  }
}

TEST_CASE("a run that goes on replaces its configuration, and keeps one that was changed") {
  InTempDir dir;
  create_run_dir({"out", "exp", false}, "old");
  dir.write("out/config.toml.99999999-1.tmp", "left");
  RunMark mark = RunMark::find("out").value();
  CHECK(reopen_run_dir("out", mark, "new").empty());
  CHECK_FALSE(fs::exists("out/config.toml.99999999-1.tmp"));
  dir.write("out/config.toml", "changed");
  CHECK(reopen_run_dir("out", mark, "newer") == "out/config.toml.kept-1");
  CHECK(test::read_file("out/config.toml.kept-1") == "changed");
  CHECK(test::read_file("out/config.toml") == "newer");
  check_reopen("out", mark);
  dir.write("out/model.safetensors", "of somebody else");
  CHECK_THROWS_WITH(check_reopen("out", mark), Catch::Contains("out/model.safetensors"));
}

TEST_CASE("a configuration file is a run's own beside the run's mark only") {
  InTempDir dir;
  create_run_dir({"out", "exp", false}, "old");
  CHECK(run_dir_of_config("out/config.toml") == "out");
  CHECK(run_dir_of_config("out/other.toml").empty());
  dir.write("mine/config.toml", "");
  CHECK(run_dir_of_config("mine/config.toml").empty());
  fs::current_path("out");
  CHECK(run_dir_of_config("config.toml") == ".");
}

TEST_CASE("the last numbered run is the one with the highest number that has what is asked for") {
  InTempDir dir;
  const auto has_some = [](const std::string& run) { return fs::exists(run + "/some"); };
  CHECK(latest_run_dir("exp", has_some).empty());
  for (const char* made : {"runs/exp-2/some", "runs/exp-9/some", "runs/exp-10", "runs/other-11/some"})
    fs::create_directories(made);
  CHECK(latest_run_dir("exp", has_some) == "runs/exp-9");
}

TEST_CASE("P12: a run that is going on is not overwritten") {
  InTempDir dir;
  create_run_dir({"out", "exp", false}, "old");
  const MetricsLog log("out/metrics.jsonl");
  CHECK(refusal({"out", "exp", true}) == ExitCode::cannot_create);
  CHECK(test::read_file("out/config.toml") == "old");
}

TEST_CASE("a folder of runs that cannot be listed is told as that") {
  InTempDir dir;
  dir.write("runs", "no folder");
  CHECK_THROWS_WITH(latest_run_dir("exp", [](const std::string&) { return true; }),
                    Catch::Contains("cannot be listed: Not a directory"));
}

TEST_CASE("a place that cannot hold a directory is refused with nothing left behind") {
  InTempDir dir;
  dir.write("file", "x");
  fs::create_symlink("nowhere", "dangling");
  CHECK_THROWS_WITH(check_run_dir({"file/run", "exp", false}), Catch::Contains("not a folder"));
  const std::size_t before = dir.entries();
  for (const char* path : {"file", "file/run", "dangling", "dangling/run", "/proc/zshard/run", "/dev/null/run"}) {
    INFO(path);
    CHECK(refusal({path, "exp", false}) == ExitCode::cannot_create);
    CHECK(refusal({path, "exp", true}) == ExitCode::cannot_create);
  }
  CHECK(refusal({"new/" + std::string(300, 'x'), "exp", false}) ==
        ExitCode::cannot_create);  // the name is too long: `new` must go again
  CHECK(dir.entries() == before);
  dir.write("runs", "a file where the folder should be");
  CHECK(refusal({"", "exp", false}) == ExitCode::cannot_create);
}

TEST_CASE("an unwritable parent is refused before anything is made") {
  InTempDir dir;
  fs::create_directory("locked");
  ::chmod("locked", 0555);
  if (::geteuid() == 0) {
    // Root may write anywhere, so ask as somebody else.
    ::chmod(dir.path().c_str(), 0755);
    const int code = test::code_in_child([&] {
      if (::setuid(65534) != 0) ::_exit(99);
      check_run_dir({dir / "locked/run", "exp", false});
    });
    CHECK(code == static_cast<int>(ExitCode::cannot_create));
  } else {
    CHECK_THROWS_AS(check_run_dir({"locked/run", "exp", false}), Error);
  }
  CHECK(dir.entries() == 1);
}

}  // namespace run_dir_test
