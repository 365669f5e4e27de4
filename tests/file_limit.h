#pragma once

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>

namespace zs::test {

/// The largest size of a file, while it lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    REQUIRE(handler_ != SIG_ERR);
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  ~FileLimit() {
    if (setrlimit(RLIMIT_FSIZE, &before_) != 0) std::abort();
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before_{};
};

}  // namespace zs::test
