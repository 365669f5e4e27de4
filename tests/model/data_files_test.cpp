#include "model/data/data_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "runtime/base/check.h"
#include "tests/model/temp_dir.h"

namespace data_files_test {

using namespace zs;
using test::TempDir;
namespace fs = std::filesystem;

TEST_CASE("patterns find files, globs and folders in the first folder that has them") {
  TempDir dir;
  const auto a = dir.write("one/a.bin", "x"), b = dir.write("one/sub/b.bin", "x");
  dir.write("one/c.txt", "x");
  dir.write("one/.hidden.bin", "x");
  dir.write("one/.git/d.bin", "x");
  const auto other = dir.write("two/a.bin", "x");
  const std::vector<std::string> folders = {dir / "none", dir / "one", dir / "two"};
  CHECK(find_data_files({"a.bin"}, folders, "") == std::vector<std::string>{a});
  CHECK(find_data_files({"*.bin"}, folders, "") == std::vector<std::string>{a});
  CHECK(find_data_files({dir / "one"}, {}, ".bin") == std::vector<std::string>{a, b});
  CHECK(find_data_files({"*/a.bin"}, {dir.path()}, "") == std::vector<std::string>{a, other});
  CHECK(find_data_files({"two", "one/../two/a.bin", "two/./a.bin"}, {dir.path()}, "") ==
        std::vector<std::string>{other});
  dir.write("three/odd[1].txt", "x");
  CHECK(find_data_files({"odd[1].txt"}, {dir / "three"}, "").size() == 1);  // a name that looks like a glob
}

TEST_CASE("links to folders are followed, each folder once, whatever loops they make") {
  TempDir dir;
  const auto a = dir.write("data/a.bin", "x"), b = dir.write("data/sub/b.bin", "x");
  dir.write("elsewhere/deep/c.bin", "x");
  dir.write("other/d.bin", "x");
  dir.write("beside.bin", "x");
  fs::create_directory_symlink(dir / "elsewhere", dir / "data/linked");
  fs::create_directory_symlink("../../other", dir / "elsewhere/deep/on");
  fs::create_directory_symlink(".", dir / "data/self");
  fs::create_directory_symlink("..", dir / "data/sub/up");
  fs::create_directory_symlink("../..",
                               dir / "data/sub/out");  // holds all of this: followed, it would add what lies beside
  fs::create_directory_symlink("../data", dir / "other/back");
  fs::create_directory_symlink("sub", dir / "data/again");
  fs::create_directory_symlink("none", dir / "data/dangling");
  fs::create_symlink("loop", dir / "data/loop");
  fs::create_symlink("../other/d.bin", dir / "data/.hidden.bin");
  CHECK(find_data_files({dir / "data"}, {}, ".bin") ==
        std::vector<std::string>{a, dir / "data/linked/deep/c.bin", dir / "data/linked/deep/on/d.bin", b});
  fs::create_directory_symlink("data", dir / "whole");
  CHECK(find_data_files({dir / "whole"}, {}, ".bin").size() == 4);
}

TEST_CASE("what exists under a name is no pattern, in any part of a path") {
  TempDir dir;
  const auto notes = dir.write("exp [v2]/notes/a.txt", "x"), odd = dir.write("exp [v2]/odd*?[1]/b\\c.txt", "x");
  const auto plain = dir.write("exp v/notes/a.txt", "x");
  const std::string folder = dir / "exp [v2]";
  CHECK(find_data_files({"notes/*.txt"}, {folder}, "") == std::vector<std::string>{notes});
  CHECK(find_data_files({folder + "/notes/*.txt"}, {}, "") == std::vector<std::string>{notes});
  CHECK(find_data_files({dir / "exp [v2]/*/*.t?t"}, {}, "") == std::vector<std::string>{notes, odd});
  CHECK(find_data_files({dir / "exp [v2]/odd*?[1]/*"}, {}, "") == std::vector<std::string>{odd});
  CHECK(find_data_files({"exp*/notes"}, {dir.path()}, "") == std::vector<std::string>{notes, plain});
  fs::rename(folder, dir / "gone");
  CHECK(find_data_files({dir / "exp [v2]/notes/*.txt"}, {}, "") ==
        std::vector<std::string>{plain});  // now it is a pattern
}

TEST_CASE("a pattern without a match says where it was looked up") {
  TempDir dir;
  fs::create_directory(dir / "empty");
  const auto message = [&](const std::string& pattern, const std::vector<std::string>& folders) {
    try {
      find_data_files({pattern}, folders, ".bin");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::dataset);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message("zshard-none.txt", {"", dir / "empty"}) ==
        "data not found (zshard-none.txt): looked in the current folder, " + (dir / "empty"));
  CHECK(message(dir / "*.txt", {}).starts_with("data not found"));
  CHECK(message(dir / "empty", {}).starts_with("the folder holds no .bin file"));
}

TEST_CASE("a folder that cannot be listed or entered is named, not the one above it") {
  if (::geteuid() != 0) SUCCEED("as root only: the test becomes somebody else");
  if (::geteuid() != 0) return;
  TempDir dir;
  dir.write("d/good/a.txt", "x");
  dir.write("d/locked/b.txt", "x");
  REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
  const auto where = [&](const std::string& pattern, const std::vector<std::string>& folders, mode_t mode) {
    REQUIRE(::chmod((dir / "d/locked").c_str(), mode) == 0);
    REQUIRE(::seteuid(65534) == 0);
    std::string named;
    try {
      find_data_files({pattern}, folders, "");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::dataset);
      CHECK(error.what_happened() == "cannot list the folder: Permission denied");
      named = error.where();
    }
    REQUIRE(::seteuid(0) == 0);
    return named;
  };
  for (const mode_t mode : {0700, 0744}) {  // 0744: its names can be read, and nothing else
    CHECK(where(dir / "d", {}, mode) == dir / "d/locked");
    CHECK(where(dir / "d/locked/b.txt", {}, mode) == dir / "d/locked");
    CHECK(where("d/*/b.txt", {"", dir.path()}, mode) == dir / "d/locked");
  }
  CHECK(where(dir / "d/locked/*.txt", {}, 0700) == dir / "d/locked");
  CHECK(where(dir / "d", {}, 0755).empty());
}

}  // namespace data_files_test
