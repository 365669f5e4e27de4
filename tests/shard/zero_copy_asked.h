#pragma once

#include <cstdlib>
#include <string_view>

namespace zs::test {

/// `wanted`, or what the build says for runs of a program with zero-copy unshards ("on") or without ("off";
/// tests/shard/meson.build).
inline bool zero_copy_in_tests(bool wanted) {
  const char* const asked = std::getenv("ZSHARD_TEST_ZERO_COPY");
  return asked == nullptr ? wanted : std::string_view(asked) == "on";
}

}  // namespace zs::test
