#include "model/train/run_dir.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "model/data/output_file.h"
#include "model/train/metrics.h"
#include "runtime/base/check.h"
#include "tests/model/temp_dir.h"

using namespace zs;
using test::TempDir;
namespace fs = std::filesystem;

namespace {

/// Runs the case inside a fresh folder, because runs/ is relative.
class InTempDir : public TempDir {
 public:
  InTempDir() : before_(fs::current_path()) { fs::current_path(path()); }
  ~InTempDir() { fs::current_path(before_); }

 private:
  fs::path before_;
};

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

/// The code of the refusal; ok without one.
ExitCode refusal(const RunDirRequest& request) {
  try {
    create_run_dir(request, "text");
  } catch (const Error& error) {
    UNSCOPED_INFO(error.what());
    return error.code();
  }
  return ExitCode::ok;
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
    const auto starts = start_together(kStarts, [&](int) { return create_run_dir({"", fmt::format("exp{}", round), false}, "x"); });
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

TEST_CASE("a named directory that holds a run is refused and left as it is") {
  InTempDir dir;
  const auto file = GENERATE(as<std::string>(), "config.toml", "metrics.jsonl");
  dir.write("old/" + file, "old");
  CHECK(refusal({"old", "exp", false}) == ExitCode::cannot_create);
  CHECK_THROWS_WITH(check_run_dir({"old", "exp", false}),
                    "the run directory already holds a run (old): choose another run.dir, or add --resume latest or --overwrite");
  CHECK(test::read_file("old/" + file) == "old");
  CHECK(dir.entries() == 2);
}

TEST_CASE("overwrite replaces the run's files and keeps others") {
  InTempDir dir;
  for (const char* file : {"config.toml", "metrics.jsonl", "model.safetensors", "notes.txt"}) dir.write(std::string("old/") + file, "old");
  CHECK(refusal({"old", "exp", true}) == ExitCode::ok);
  CHECK(test::read_file("old/config.toml") == "text");
  CHECK(test::read_file("old/metrics.jsonl").empty());
  CHECK_FALSE(fs::exists("old/model.safetensors"));
  CHECK(test::read_file("old/notes.txt") == "old");
}

TEST_CASE("checkpoints are a run's: they are not passed over, and overwriting removes them") {
  InTempDir dir;
  dir.write("out/checkpoints/step-3/manifest.json", "x");
  dir.write("out/notes", "x");
  CHECK(refusal({"out", "exp", false}) == ExitCode::cannot_create);
  create_run_dir({"out", "exp", true}, "new");
  CHECK_FALSE(fs::exists("out/checkpoints"));
  CHECK_FALSE(fs::exists("out/checkpoints.del"));
  CHECK(fs::exists("out/notes"));
}

TEST_CASE("the last numbered run is the one with the highest number that has what is asked for") {
  InTempDir dir;
  CHECK(latest_run_dir("exp", "checkpoints").empty());
  for (const char* made : {"runs/exp-2/checkpoints", "runs/exp-9/checkpoints", "runs/exp-10", "runs/other-11/checkpoints"})
    fs::create_directories(made);
  CHECK(latest_run_dir("exp", "checkpoints") == "runs/exp-9");
}

TEST_CASE("P12: a run that is going on is not overwritten") {
  InTempDir dir;
  create_run_dir({"out", "exp", false}, "old");
  const MetricsLog log("out/metrics.jsonl");
  CHECK(refusal({"out", "exp", true}) == ExitCode::cannot_create);
  CHECK(test::read_file("out/config.toml") == "old");
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
  CHECK(refusal({"new/" + std::string(300, 'x'), "exp", false}) == ExitCode::cannot_create);  // the name is too long: `new` must go again
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
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      if (::setuid(65534) != 0) ::_exit(99);
      try {
        check_run_dir({dir / "locked/run", "exp", false});
      } catch (const Error& error) {
        ::_exit(static_cast<int>(error.code()));
      }
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == static_cast<int>(ExitCode::cannot_create));
  } else {
    CHECK_THROWS_AS(check_run_dir({"locked/run", "exp", false}), Error);
  }
  CHECK(dir.entries() == 1);
}

TEST_CASE("an output file appears only when committed") {
  TempDir dir;
  {
    OutputFile file(dir / "a");
    file.write("half", 4);
    CHECK_FALSE(fs::exists(dir / "a"));
  }
  CHECK(dir.entries() == 0);
  write_file_atomically(dir / "a", "whole");
  write_file_atomically(dir / "a", "again");
  CHECK(test::read_file(dir / "a") == "again");
  CHECK(dir.entries() == 1);
}

TEST_CASE("an output file that meets a size limit is an I/O error and leaves nothing") {
  TempDir dir;
  ::fflush(nullptr);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(99);
    try {
      write_file_atomically(dir / "a", std::string(5000, 'x'));
    } catch (const Error& error) {
      ::_exit(static_cast<int>(error.code()));
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == static_cast<int>(ExitCode::io));
  CHECK(dir.entries() == 0);
}

TEST_CASE("an output file in a missing folder cannot be created") {
  TempDir dir;
  try {
    OutputFile file(dir / "none/a");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::cannot_create);
  }
}
