#include "model/data/output_file.h"

#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

#include "runtime/base/check.h"
#include "tests/code_in_child.h"
#include "tests/model/temp_dir.h"

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
