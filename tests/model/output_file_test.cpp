#include "model/data/output_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

#include "runtime/base/check.h"
#include "tests/code_in_child.h"
#include "tests/model/temp_dir.h"

namespace output_file_test {

using namespace zs;
using test::TempDir;
namespace fs = std::filesystem;

TEST_CASE("only what an output file of another process was writing is left over") {
  CHECK(leftover_of("model.safetensors.4242-0.tmp") == "model.safetensors");
  CHECK(leftover_of("config.toml.1-99.tmp") == "config.toml");
  for (const std::string& name :
       {std::string("a.tmp"), std::string("a.1.tmp"), std::string("a.-1-0.tmp"), std::string("a.1-x.tmp"),
        std::string("a.1-0.tmp.old"), std::string(".1-0.tmp"), fmt::format("a.{}-0.tmp", ::getpid())}) {
    INFO(name);
    CHECK_FALSE(leftover_of(name).has_value());
  }
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
  const int code = test::code_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(99);
    write_file_atomically(dir / "a", std::string(5000, 'x'));
  });
  CHECK(code == static_cast<int>(ExitCode::io));
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

TEST_CASE("an output takes only a free name, or that of a file as the same option writes it") {
  TempDir dir;
  dir.write("own", "own");
  dir.write("other", "precious");
  fs::create_directory(dir / "folder");
  fs::create_symlink(dir / "own", dir / "link");
  fs::create_symlink("nowhere", dir / "dangling");
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  const OutputRule rule{.is_own = [](const std::string& path) { return test::read_file(path).starts_with("own"); }};
  for (const char* name : {"other", "folder", "link", "dangling", "pipe"}) {
    INFO(name);
    CHECK_THROWS_AS(check_output(dir / name, rule), Error);
    CHECK_THROWS_AS(OutputFile(dir / name, rule), Error);
  }
  CHECK_THROWS_AS(check_output("/dev/null", rule), Error);
  CHECK_NOTHROW(check_output(dir / "own", rule));
  CHECK_NOTHROW(check_output(dir / "free"));
  CHECK_THROWS_AS(check_output(dir / "own"), Error);
  fs::create_hard_link(dir / "own", dir / "the same");
  CHECK_THROWS_WITH(check_output(dir / "own", {.is_own = rule.is_own, .reads = {dir / "none", dir / "the same"}}),
                    Catch::Contains("this call reads"));
  CHECK(test::read_file(dir / "other") == "precious");
}

TEST_CASE("what takes the name while an output is written stays") {
  TempDir dir;
  OutputFile file(dir / "a", OutputRule{});
  file.write("b", 1);
  dir.write("a", "precious");
  CHECK_THROWS_AS(file.commit(), Error);
  CHECK(test::read_file(dir / "a") == "precious");
}

TEST_CASE("what a killed writer has left goes with the next one, and what another one is writing stays") {
  TempDir dir;
  dir.write("a.99999999-0.tmp", "left");
  dir.write("b.99999999-0.tmp", "of another file");
  dir.write("a.99999998-0.tmp", "being written");
  fs::create_directory(dir / "a.99999997-0.tmp");
  const File other = File::open(dir / "a.99999998-0.tmp", O_RDWR);
  REQUIRE(other.lock() == File::Lock::taken);
  write_file_atomically(dir / "a", "whole");
  CHECK_FALSE(fs::exists(dir / "a.99999999-0.tmp"));
  CHECK(fs::exists(dir / "a.99999998-0.tmp"));
  CHECK(dir.entries() == 4);
}

}  // namespace output_file_test
