#include "comm/nccl/nccl_library.h"

#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <system_error>

#include "comm/gpu/gpu_world.h"
#include "runtime/base/check.h"

namespace nccl_library_test {

using namespace zs;
namespace fs = std::filesystem;

TEST_CASE("a machine without NCCL is told in one line") {
  CHECK_THROWS_WITH(open_nccl_library("libno-such-nccl.so.2"),
                    Catch::StartsWith("no NCCL here (libno-such-nccl.so.2: "));
  CHECK_THROWS_WITH(open_nccl_library("libm.so.6"),
                    Catch::StartsWith("the NCCL is too old: it has no ncclGetVersion (libm.so.6): "));
}

namespace {

/// A folder for one test, with an environment in which CUDA's libraries are found only there.
class LibraryFolders {
 public:
  LibraryFolders() : root_(fs::temp_directory_path() / fmt::format("zshard_libraries.{}", getpid())) {
    for (const char* name : kNames) {
      if (const char* const value = std::getenv(name)) before_[name] = value;
      setenv(name, "/nowhere", 1);
    }
  }
  ~LibraryFolders() {
    for (const char* name : kNames) before_.contains(name) ? setenv(name, before_[name].c_str(), 1) : unsetenv(name);
    std::error_code failed;
    fs::remove_all(root_, failed);
  }
  LibraryFolders(const LibraryFolders&) = delete;
  LibraryFolders& operator=(const LibraryFolders&) = delete;

  /// A folder below this one, made.
  fs::path folder(const std::string& name) const {
    fs::create_directories(root_ / name);
    return root_ / name;
  }
  /// The same, with a library in it that leads to `target`.
  std::string with_library(const std::string& name, const std::string& target) const {
    fs::create_symlink(target, folder(name) / kLibrary);
    return (root_ / name).string();
  }
  static constexpr const char* kLibrary = "libzshard_made_up.so.2";

 private:
  static constexpr std::array kNames = {"CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH"};
  fs::path root_;
  std::map<std::string, std::string> before_;
};

}  // namespace

TEST_CASE("CUDA's libraries are found in folders that are named, below CUDA's own, and in Python's packages") {
  const std::string good = fmt::format("{}/libhollow_nccl_good.so", HOLLOW_NCCL);
  const LibraryFolders at;
  const auto finds = [](const std::string& folders = {}) {
    set_nccl_environment();
    try {
      return version_of(*open_nccl_library(LibraryFolders::kLibrary, folders), "it") == 22800;
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Catch::StartsWith("no NCCL here (") && Catch::EndsWith("or stage over the hosts"));
      return false;
    }
  };
  CHECK_FALSE(finds());
  CHECK(finds("/nowhere:" + at.with_library("named", good)));
  at.with_library("home/lib64", good);
  setenv("CUDA_HOME", at.folder("home").c_str(), 1);
  CHECK(finds());
  CHECK(finds("/nowhere"));
  setenv("CUDA_HOME", "", 1);
  CHECK_FALSE(finds());
  at.with_library("venv/lib/python3.12/site-packages/nvidia/nccl/lib", good);
  setenv("VIRTUAL_ENV", at.folder("venv").c_str(), 1);
  CHECK(finds());
  unsetenv("VIRTUAL_ENV");
  CHECK_FALSE(finds());
  fs::create_symlink("/proc/self/exe", at.folder("venv/bin") / "python3");
  setenv("PATH", fmt::format("/nowhere:{}", at.folder("venv/bin").string()).c_str(), 1);
  CHECK(finds());
}

TEST_CASE("of a library that is found and cannot be loaded the error says why") {
  const LibraryFolders at;
  const std::string folder = at.with_library("unloadable", "text");  // no path that another case has loaded
  std::ofstream(at.folder("unloadable") / "text") << "no library";
  CHECK_THROWS_WITH(open_nccl_library(LibraryFolders::kLibrary, folder),
                    Catch::StartsWith(fmt::format("no NCCL here ({}/{}: ", folder, LibraryFolders::kLibrary)));
}

TEST_CASE(
    "NCCL is opened when its version is known to be new enough, and its environment was set before there were "
    "threads") {
  const auto hollow = [](const char* version) { return fmt::format("{}/libhollow_nccl_{}.so", HOLLOW_NCCL, version); };
  CHECK_THROWS_WITH(open_nccl_library(hollow("old").c_str()), Catch::StartsWith("NCCL is too old: version 21703 ("));
  CHECK_THROWS_WITH(open_nccl_library(hollow("broken").c_str()), Catch::StartsWith("ncclGetVersion: NCCL error 2 ("));
  const std::string good = hollow("good");
  REQUIRE(unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT") == 0);
  CHECK_THROWS_WITH(open_nccl_library(good.c_str()),
                    Catch::StartsWith("NCCL_LAUNCH_ORDER_IMPLICIT is not set (environment): "));
  set_nccl_environment();
  CHECK(version_of(*open_nccl_library(good.c_str()), good.c_str()) == 22800);
  REQUIRE(setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1) == 0);
  set_nccl_environment();  // what the user has said stays
  CHECK(std::string_view(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT")) == "0");
  CHECK_NOTHROW(open_nccl_library(good.c_str()));
  REQUIRE(unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT") == 0);
}

}  // namespace nccl_library_test
