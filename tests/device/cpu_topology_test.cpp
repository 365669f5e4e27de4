#include "runtime/device/cpu_topology.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>

#include "runtime/base/check.h"
#include "runtime/base/proc_file.h"
#include "runtime/device/cgroup.h"
#include "runtime/device/memory_limit.h"

namespace cpu_topology_test {

using namespace zs;

namespace {

CpuSituation situation(std::vector<int> cpus, std::string omp = {}) { return {cpus, cpus, false, std::move(omp)}; }

bool is_explicit(const std::map<std::string, std::string>& variables) {
  return is_binding_explicit([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

/// A /proc and /sys of files.
struct FakeRoot {
  FakeRoot() {
    char name[] = "/tmp/zshard-limit-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
  }
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path + file).parent_path());
    std::ofstream(path + file) << text;
  }
  std::string path;
};

}  // namespace

TEST_CASE("ranks get disjoint consecutive shares that cover all CPUs") {
  std::vector<int> covered;
  for (int rank = 0; rank < 3; ++rank) {
    const CpuShare share = cpu_share(rank, 3, situation({0, 1, 2, 3, 8, 9, 10, 11}));
    CHECK(share.threads == 2);
    covered.insert(covered.end(), share.cpus.begin(), share.cpus.end());
  }
  CHECK(covered == std::vector<int>{0, 1, 2, 3, 8, 9, 10, 11});
}

TEST_CASE("more ranks than CPUs share all of them with one thread each") {
  const CpuShare share = cpu_share(2, 4, situation({0, 1}));
  CHECK(share.cpus == std::vector<int>{0, 1});
  CHECK(share.threads == 1);
  CHECK(share.description == "1 thread on CPUs 0-1");
}

TEST_CASE("one rank uses every CPU") {
  const CpuShare share = cpu_share(0, 1, situation({0, 1, 4}));
  CHECK(share.description == "3 threads on CPUs 0-1,4");
}

TEST_CASE("OMP_NUM_THREADS is obeyed") {
  CHECK(cpu_share(0, 1, situation({0, 1, 2, 3}, "2")).threads == 2);
  CHECK(cpu_share(0, 1, situation({0, 1, 2, 3}, "3,1")).threads == 3);
  const CpuShare many = cpu_share(1, 2, situation({0, 1}, "2"));
  CHECK(many.threads == 2);
  CHECK(many.cpus == std::vector<int>{0, 1});
}

TEST_CASE("an invalid OMP_NUM_THREADS is a usage error that shows it") {
  const std::string value = GENERATE("0", "-1", "two", "4x", "99999", " ", "99999999999999999999");
  try {
    cpu_share(0, 1, situation({0, 1}, value));
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    CHECK_THAT(error.what(), Catch::Contains("OMP_NUM_THREADS is '" + value + "'"));
  }
}

TEST_CASE("a binding that the user asked for is the rank's share") {
  const CpuShare share = cpu_share(1, 2, {{0, 1, 2, 3}, {1}, true, ""});
  CHECK(share.cpus == std::vector<int>{1});
  CHECK(share.threads == 1);
  // Two of four ranks bound to each half: a rank's part of the host, not the whole half, is its number of threads.
  CHECK(cpu_share(1, 4, {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3}, true, ""}).threads == 2);
}

TEST_CASE("a binding is explicit when the launcher's variables say so") {
  CHECK_FALSE(is_explicit({}));
  CHECK(is_explicit({{"OMPI_MCA_hwloc_base_binding_policy", "core"}}));
  CHECK(is_explicit({{"OMPI_MCA_hwloc_base_binding_policy", "socket:overload-allowed"}}));
  CHECK_FALSE(is_explicit({{"OMPI_MCA_hwloc_base_binding_policy", "none"}}));
  CHECK(is_explicit({{"OMPI_MCA_hwloc_base_cpu_set", "1"}}));
  CHECK(is_explicit({{"OMPI_MCA_hwloc_base_cpu_list", "0,1"}}));
  CHECK(is_explicit({{"OMPI_MCA_rmaps_base_mapping_policy", "slot:pe=2"}}));
  CHECK_FALSE(is_explicit({{"OMPI_MCA_rmaps_base_mapping_policy", "slot"}}));
}

TEST_CASE("finding the share leaves the affinity as it was") {
  const std::vector<int> before = affinity_of_this_thread();
  bind_this_thread({before.front()});
  REQUIRE(setenv("OMPI_COMM_WORLD_SIZE", "1", 1) == 0);
  const CpuShare share = cpu_share(0, 1);
  REQUIRE(unsetenv("OMPI_COMM_WORLD_SIZE") == 0);
  CHECK(affinity_of_this_thread() == std::vector<int>{before.front()});
  CHECK(share.cpus.size() >= before.size());                        // what looks like mpirun's own binding is undone
  CHECK(cpu_share(0, 1).cpus == std::vector<int>{before.front()});  // without mpirun it is the user's
  bind_this_thread(before);
}

TEST_CASE("lists of CPUs are written as ranges") {
  CHECK(cpu_list({}) == "");
  CHECK(cpu_list({3}) == "3");
  CHECK(cpu_list({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8");
}

TEST_CASE("a version 2 cgroup limits memory, and so does its parent") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/job/step\n");
  root.write("/sys/fs/cgroup/job/step/memory.max", "max\n");
  root.write("/sys/fs/cgroup/job/memory.max", "1048576\n");
  const MemoryLimit limit = memory_limit_bytes(root.path);
  CHECK(limit.bytes == 1048576);
  CHECK(limit.source == "cgroup memory.max");
}

TEST_CASE("a version 1 cgroup limits memory") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "9:cpu,cpuacct:/\n4:hugetlb,memory:/job\n0::/\n");
  root.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2097152\n");
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const MemoryLimit limit = memory_limit_bytes(root.path);
  CHECK(limit.bytes == 2097152);
  CHECK(limit.source == "cgroup memory.limit_in_bytes");
}

TEST_CASE("a group whose path is the host's is found at the mount's root") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/machine/only-outside\n");
  root.write("/sys/fs/cgroup/memory.max", "4194304\n");
  CHECK(memory_limit_bytes(root.path).bytes == 4194304);
}

TEST_CASE("without groups the physical memory is the limit") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "4:memory:/\n");
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // what version 1 says for none
  const MemoryLimit limit = memory_limit_bytes(root.path);
  CHECK(limit.source == "physical memory");
  CHECK(memory_limits(root.path).size() == 1);
  CHECK(limit.bytes > 0);
}

// Sanitizers map terabytes, so they do not live under such a limit.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("ulimit -v and -d are limits of each process, which has used some of them") {
  const FakeRoot root;
  root.write("/proc/self/status", "VmPeak:\t  9000 kB\nVmSize:\t    7000 kB\nVmData:\t 300 kB\n");
  const auto [resource, source, used_bytes, has_arenas] =
      GENERATE(table<__rlimit_resource, std::string, std::int64_t, bool>(
          {{RLIMIT_AS, "ulimit -v", 7000 * 1024, true}, {RLIMIT_DATA, "ulimit -d", 300 * 1024, false}}));
  rlimit before{}, lowered{};
  REQUIRE(getrlimit(resource, &before) == 0);
  lowered = before;
  const std::int64_t bytes = memory_limit_bytes(root.path).bytes - 4096;
  lowered.rlim_cur = static_cast<rlim_t>(bytes);
  REQUIRE(setrlimit(resource, &lowered) == 0);
  const MemoryLimit limit = memory_limit_bytes(root.path);
  const std::vector<MemoryLimit> all = memory_limits(root.path);
  REQUIRE(setrlimit(resource, &before) == 0);
  CHECK(limit.bytes == bytes);
  CHECK(limit.source == source);
  CHECK(limit.is_per_process);
  CHECK(limit.used_bytes == used_bytes);
  CHECK((limit.thread_bytes > 64 << 20) == has_arenas);
  CHECK(limit.thread_bytes > 0);
  CHECK(all.front().source == "physical memory");
  CHECK_FALSE(all.front().is_per_process);
}
#endif

TEST_CASE("a CPU quota bounds the threads of all ranks together, and OMP_NUM_THREADS is obeyed all the same") {
  CpuSituation limited = situation({0, 1, 2, 3, 4, 5, 6, 7});
  limited.quota = 4.5;
  CHECK(cpu_share(0, 1, limited).threads == 4);
  CHECK(cpu_share(0, 1, limited).cpus.size() == 8);  // the quota says how long, not where
  CHECK(cpu_share(0, 1, limited).description == "4 threads on CPUs 0-7 (quota 4.5 CPUs)");
  CHECK(cpu_share(1, 2, limited).threads == 2);
  CHECK(cpu_share(3, 8, limited).threads == 1);
  limited.quota = 0.5;
  CHECK(cpu_share(0, 1, limited).threads == 1);
  limited.quota = 8;  // no limit
  CHECK(cpu_share(0, 1, limited).threads == 8);
  CHECK(cpu_share(0, 1, limited).description == "8 threads on CPUs 0-7");
  limited.quota = 2;
  limited.omp_num_threads = "6";
  CHECK(cpu_share(0, 1, limited).threads == 6);
}

TEST_CASE("a rank has no more threads than CPUs that the launcher was asked for") {
  CpuSituation asked = situation({0, 1, 2, 3, 4, 5, 6, 7});
  asked.cpus_per_rank = 2;
  CHECK(cpu_share(0, 2, asked).threads == 2);
  asked.cpus_per_rank = 6;
  CHECK(cpu_share(0, 2, asked).threads == 4);
  asked.omp_num_threads = "7";
  CHECK(cpu_share(0, 2, asked).threads == 7);
}

TEST_CASE("the CPU quota is the least of the group's and its ancestors', of either version") {
  const FakeRoot root;
  CHECK_FALSE(cpu_quota(root.path));
  root.write("/proc/self/cgroup", "0::/jobs/one\n");
  root.write("/sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n");
  CHECK_FALSE(cpu_quota(root.path));
  root.write("/sys/fs/cgroup/jobs/cpu.max", "250000 100000\n");
  CHECK(cpu_quota(root.path) == 2.5);
  root.write("/sys/fs/cgroup/jobs/one/cpu.max", "50000 25000\n");
  CHECK(cpu_quota(root.path) == 2.0);
  root.write("/proc/self/cgroup", "4:cpu,cpuacct:/box\n3:memory:/other\n0::/\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(cpu_quota(root.path));
  root.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n");  // in a container, whose path is the host's
  root.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  CHECK(cpu_quota(root.path) == 1.5);
}

TEST_CASE("a file of a process that has ended meanwhile reads as empty") {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  REQUIRE(child > 0);
  const int file = open(fmt::format("/proc/{}/stat", child).c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);
  CHECK_FALSE(read_proc_file(fmt::format("/proc/{}/stat", child)).empty());
  REQUIRE(kill(child, SIGKILL) == 0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK(read_rest_of(file).empty());  // read() says ESRCH
  CHECK(close(file) == 0);
  CHECK(read_proc_file(fmt::format("/proc/{}/stat", child)).empty());
}

}  // namespace cpu_topology_test
