#include "comm/shm_memory.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "runtime/base/check.h"

using namespace zs;

namespace {

/// Of this process's addresses.
std::int64_t mapped_pages() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

}  // namespace

TEST_CASE("a peer's memory that cannot be mapped leaves nothing mapped") {
  ShmMemory memory(0, 2);
  const int unmappable = open("/dev/null", O_RDWR | O_CLOEXEC);
  REQUIRE(unmappable >= 0);
  const std::int64_t bytes = std::int64_t{1} << 32;
  const std::array<ShmInvitation, 2> invitations{{{}, {getpid(), unmappable, bytes, 1}}};
  const std::int64_t before = mapped_pages();
  CHECK_THROWS_AS(memory.map_peers(invitations), Error);
  CHECK(mapped_pages() - before < bytes / sysconf(_SC_PAGESIZE) / 2);
  close(unmappable);
}
