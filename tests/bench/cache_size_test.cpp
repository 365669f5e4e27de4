#include "bench/common/cache_size.h"

#include <catch2/catch.hpp>

#include "tests/model/temp_dir.h"

namespace cache_size_test {

using namespace zs::bench;

namespace {

struct Cache {
  const char *level, *type, *size, *shared_by;
};

struct FakeSystem {
  zs::test::TempDir root;

  void add(int cpu, const std::vector<Cache>& caches) const {
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const std::string folder =
          "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(i) + "/";
      root.write(folder + "level", std::string(caches[i].level) + "\n");
      root.write(folder + "type", std::string(caches[i].type) + "\n");
      root.write(folder + "size", std::string(caches[i].size) + "\n");
      root.write(folder + "shared_cpu_list", std::string(caches[i].shared_by) + "\n");
    }
  }
  std::int64_t bytes(const std::vector<int>& cpus) const { return last_level_cache_bytes(cpus, root.path()); }
};

}  // namespace

TEST_CASE("a cache that CPUs share counts once, and each of several counts") {
  const FakeSystem system;
  for (const int cpu : {0, 1})
    system.add(cpu, {{"1", "Data", "32K", "0"}, {"2", "Unified", "1024K", "0"}, {"3", "Unified", "32768K", "0-1"}});
  for (const int cpu : {2, 3}) system.add(cpu, {{"1", "Data", "32K", "2"}, {"3", "Unified", "16M", "2-3"}});
  CHECK(system.bytes({0, 1}) == std::int64_t{32} << 20);
  CHECK(system.bytes({1, 2}) == std::int64_t{48} << 20);
}

TEST_CASE("the last level is the highest, whatever the order, and instructions do not count") {
  const FakeSystem system;
  system.add(0, {{"2", "Unified", "512K", "0"}, {"1", "Data", "64K", "0"}, {"3", "Instruction", "8M", "0"}});
  CHECK(system.bytes({0}) == 512 << 10);
}

TEST_CASE("a system that does not tell has 64 MiB") {
  const FakeSystem system;
  CHECK(system.bytes({0, 1}) == std::int64_t{64} << 20);
  system.add(0, {{"3", "Unified", "much", "0"}});
  CHECK(system.bytes({0}) == std::int64_t{64} << 20);
}

}  // namespace cache_size_test
