#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <system_error>

namespace zs::test {

/// Of the file without a name that this process has open there.
inline void spoil_file_of(const std::string& folder, const std::string& how) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code failed;
    const std::string target = std::filesystem::read_symlink(entry.path(), failed).string();
    if (failed || !target.starts_with(folder)) continue;
    const int file = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(file >= 0);
    constexpr char kByte = 0x55;
    if (how == "shortened") CHECK(::ftruncate(file, 4096) == 0);
    if (how == "changed") CHECK(::pwrite(file, &kByte, 1, 1) == 1);
    ::close(file);
    return;
  }
  FAIL("no file is open in " << folder);
}

}  // namespace zs::test
