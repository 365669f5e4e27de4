#include "comm/shm/shm_memory.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

#include "runtime/base/check.h"
#include "tests/skip.h"

namespace shm_memory_test {

using namespace zs;

namespace {

/// Of this process's addresses.
std::int64_t mapped_pages() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Of this process's shared memory, in huge pages.
std::int64_t huge_kib() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string key;
  for (std::int64_t kib = 0; file >> key; file.ignore(256, '\n')) {
    if (key == "ShmemPmdMapped:" && file >> kib) return kib;
  }
  return 0;
}

/// Whether this kernel puts shared memory that is there onto huge pages (MADV_COLLAPSE, from Linux 6.1 on).
bool has_huge_shared_pages() {
  constexpr int kCollapse = 25;
  void* const room = mmap(nullptr, 2 * kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(room != MAP_FAILED);
  auto* const page =
      reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(room) + kHugePage - 1) / kHugePage * kHugePage);
  REQUIRE(mmap(page, kHugePage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
  *page = 1;
  const bool has = madvise(page, kHugePage, kCollapse) == 0;
  munmap(room, 2 * kHugePage);
  return has;
}

}  // namespace

TEST_CASE("shared memory of several MiB lies on huge pages, where the kernel has them for it") {
  if (!has_huge_shared_pages()) return test::skip("this kernel has no huge pages for shared memory");
  ShmMemory memory(0, 1, 300);
  const std::int64_t before = huge_kib(), bytes = 5 * static_cast<std::int64_t>(kHugePage) + 4096;
  void* const address = memory.allocate(bytes);
  CHECK(huge_kib() - before == 5 * 2048);
  memory.deallocate(address, bytes);
  CHECK(huge_kib() == before);
}

TEST_CASE("the memory that ranks share cannot be cut, and what could be is not mapped") {
  ShmMemory mine(0, 2, 300), theirs(1, 2, 300);
  const ShmInvitation good = theirs.invitation();
  CHECK(ftruncate(static_cast<int>(good.fd), 0) != 0);
  std::array<ShmInvitation, 2> invitations{{{}, good}};
  CHECK_NOTHROW(mine.map_peers(invitations));
  ShmMemory other(0, 2, 300);
  const int unsealed = memfd_create("zshard", MFD_CLOEXEC);
  REQUIRE((unsealed >= 0 && ftruncate(unsealed, good.bytes) == 0));
  REQUIRE(pwrite(unsealed, &good.nonce, sizeof good.nonce, 0) == sizeof good.nonce);
  invitations[1].fd = unsealed;
  CHECK_THROWS_AS(other.map_peers(invitations), Error);
  invitations[1] = {good.pid, good.fd, good.bytes - 4096, good.nonce};
  CHECK_THROWS_AS(other.map_peers(invitations), Error);
  close(unsealed);
}

TEST_CASE("a peer's memory that cannot be mapped leaves nothing mapped") {
  ShmMemory memory(0, 2, 300);
  const int unmappable = open("/dev/null", O_RDWR | O_CLOEXEC);
  REQUIRE(unmappable >= 0);
  const std::int64_t bytes = std::int64_t{1} << 32;
  const std::array<ShmInvitation, 2> invitations{{{}, {getpid(), unmappable, bytes, 1}}};
  const std::int64_t before = mapped_pages();
  CHECK_THROWS_AS(memory.map_peers(invitations), Error);
  CHECK(mapped_pages() - before < bytes / sysconf(_SC_PAGESIZE) / 2);
  close(unmappable);
}

}  // namespace shm_memory_test
