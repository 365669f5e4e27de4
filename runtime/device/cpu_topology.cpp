#include "runtime/device/cpu_topology.h"

#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "runtime/base/check.h"
#include "runtime/base/launch.h"
#include "runtime/base/proc_file.h"
#include "runtime/device/cgroup.h"

namespace zs {
namespace {

constexpr int kMaxCpus = 4096, kMaxThreads = 1024, kMaxAncestors = 16;

/// cpu_set_t for machines beyond its fixed 1024 CPUs.
class CpuMask {
 public:
  CpuMask() : set_(CPU_ALLOC(kMaxCpus)) {
    ZS_CHECK(set_ != nullptr, "a mask of {} CPUs", kMaxCpus);
    CPU_ZERO_S(kBytes, set_.get());
  }
  void add(int cpu) { CPU_SET_S(cpu, kBytes, set_.get()); }
  bool apply() const { return sched_setaffinity(0, kBytes, set_.get()) == 0; }
  bool read(pid_t pid) { return sched_getaffinity(pid, kBytes, set_.get()) == 0; }
  std::vector<int> cpus() const {
    std::vector<int> cpus;
    for (int cpu = 0; cpu < kMaxCpus; ++cpu)
      if (CPU_ISSET_S(cpu, kBytes, set_.get())) cpus.push_back(cpu);
    return cpus;
  }

 private:
  static constexpr std::size_t kBytes = kMaxCpus / 8;
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };
  std::unique_ptr<cpu_set_t, Free> set_;
};

std::vector<int> affinity_of(pid_t pid) {
  CpuMask mask;
  return mask.read(pid) ? mask.cpus() : std::vector<int>{};
}

/// CPUs that the kernel leaves of "all CPUs": the cpuset of this process, whatever its affinity was.
std::vector<int> cpus_of_cpuset() {
  std::vector<int> before = affinity_of_this_thread();
  CpuMask all;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) all.add(cpu);
  if (!all.apply()) return before;
  std::vector<int> allowed = affinity_of_this_thread();
  bind_this_thread(before);
  return allowed;
}

struct Process {
  std::string name;
  pid_t parent = 0;
};

std::optional<Process> process(pid_t pid) {
  const std::string text = read_proc_file(fmt::format("/proc/{}/stat", pid));
  // PID (NAME) STATE PPID ...; the name may hold anything, parentheses included.
  const auto open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 4 >= text.size()) return std::nullopt;
  Process found{text.substr(open + 1, close - open - 1), 0};
  const char* const parent = text.data() + close + 4;
  if (std::from_chars(parent, text.data() + text.size(), found.parent).ec != std::errc{}) return std::nullopt;
  return found;
}

/// The affinity of the launcher that this process descends from: that is what the user's taskset or numactl around
/// mpirun left it.
std::vector<int> cpus_of_launcher() {
  pid_t pid = getppid();
  for (int depth = 0; depth < kMaxAncestors && pid > 1; ++depth) {
    const std::optional<Process> ancestor = process(pid);
    if (!ancestor) break;
    for (const char* launcher : {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "slurmstepd"})
      if (ancestor->name.starts_with(launcher)) return affinity_of(pid);
    pid = ancestor->parent;
  }
  return {};
}

CpuSituation read_situation() {
  CpuSituation situation;
  situation.allowed = situation.bound = affinity_of_this_thread();
  situation.quota = cpu_quota();
  if (const char* threads = std::getenv("OMP_NUM_THREADS")) situation.omp_num_threads = threads;
  const Launch launch = read_launch();
  situation.cpus_per_rank = launch.cpus_per_rank;
  situation.is_bound_by_user =
      launch.is_bound_by_user || (launch.manager == ProcessManager::open_mpi &&
                                  is_binding_explicit([](const char* name) { return std::getenv(name); }));
  if (launch.manager != ProcessManager::open_mpi && !launch.is_bound_by_user) return situation;
  std::vector<int> allowed = cpus_of_cpuset();
  if (const std::vector<int> launcher = cpus_of_launcher(); !launcher.empty()) {
    std::vector<int> both;
    std::set_intersection(allowed.begin(), allowed.end(), launcher.begin(), launcher.end(), std::back_inserter(both));
    if (!both.empty()) allowed = both;
  }
  situation.allowed = allowed;
  return situation;
}

/// 0: not set.
int threads_wanted(const std::string& text) {
  if (text.empty()) return 0;
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  const bool is_complete = end == text.data() + text.size() || *end == ',';
  if (error != std::errc{} || !is_complete || threads < 1 || threads > kMaxThreads)
    throw Error(ExitCode::usage, fmt::format("OMP_NUM_THREADS is '{}'", text), {},
                fmt::format("set it to a number from 1 to {}, or unset it", kMaxThreads));
  return threads;
}

}  // namespace

CpuShare cpu_share(int local_rank, int local_size) { return cpu_share(local_rank, local_size, read_situation()); }

CpuShare cpu_share(int local_rank, int local_size, const CpuSituation& situation) {
  ZS_CHECK(local_size >= 1 && local_rank >= 0 && local_rank < local_size, "local rank {} of {}", local_rank,
           local_size);
  const int wanted = threads_wanted(situation.omp_num_threads);
  const std::vector<int>& all = situation.is_bound_by_user ? situation.bound : situation.allowed;
  const int fair = std::max(1, static_cast<int>(situation.allowed.size()) / local_size);
  const bool is_limited = situation.quota && *situation.quota < static_cast<double>(situation.allowed.size());
  const int most = is_limited ? std::max(1, static_cast<int>(*situation.quota / local_size)) : fair;
  CpuShare share;
  const int asked = situation.cpus_per_rank > 0 ? situation.cpus_per_rank : kMaxThreads;
  share.threads = wanted > 0 ? wanted : std::min({fair, most, asked, std::max(1, static_cast<int>(all.size()))});
  // With more threads than CPUs in a share, disjoint shares would only take away the chance to use an idle neighbour's.
  const bool is_disjoint =
      !situation.is_bound_by_user && static_cast<int>(all.size()) >= local_size && share.threads <= fair;
  if (is_disjoint) {
    const auto cut = [&](int rank) { return static_cast<std::ptrdiff_t>(all.size()) * rank / local_size; };
    share.cpus.assign(all.begin() + cut(local_rank), all.begin() + cut(local_rank + 1));
  } else {
    share.cpus = all;
    share.is_shared = !situation.is_bound_by_user && local_size > 1;
  }
  share.description = fmt::format("{} thread{} on CPU{} {}", share.threads, share.threads == 1 ? "" : "s",
                                  share.cpus.size() == 1 ? "" : "s", cpu_list(share.cpus));
  if (is_limited)
    share.description += fmt::format(" (quota {:.1f} CPU{})", *situation.quota, *situation.quota == 1 ? "" : "s");
  return share;
}

bool is_binding_explicit(const std::function<const char*(const char*)>& variable) {
  // --bind-to none asks for no binding, and gets none: the ranks share what there is.
  const char* const policy = variable("OMPI_MCA_hwloc_base_binding_policy");
  if (policy != nullptr) return std::string_view(policy).substr(0, 4) != "none";
  if (variable("OMPI_MCA_hwloc_base_cpu_set") != nullptr || variable("OMPI_MCA_hwloc_base_cpu_list") != nullptr)
    return true;
  const char* const mapping = variable("OMPI_MCA_rmaps_base_mapping_policy");
  if (mapping == nullptr) return false;
  std::string upper(mapping);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return upper.find("PE=") != std::string::npos;
}

std::string cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (last > i) text += fmt::format("-{}", cpus[last]);
    i = last + 1;
  }
  return text;
}

void bind_this_thread(const std::vector<int>& cpus) {
  CpuMask mask;
  for (const int cpu : cpus) {
    ZS_CHECK(cpu >= 0 && cpu < kMaxCpus, "CPU {}, expected 0 to {}", cpu, kMaxCpus - 1);
    mask.add(cpu);
  }
  if (!mask.apply())
    throw Error(ExitCode::usage, fmt::format("cannot run on CPUs {}: {}", cpu_list(cpus), std::strerror(errno)), {},
                "check the CPUs that taskset, the container or the launcher allow");
}

std::vector<int> affinity_of_this_thread() {
  std::vector<int> cpus = affinity_of(0);
  ZS_CHECK(!cpus.empty(), "the system does not tell this thread's CPUs: {}", std::strerror(errno));
  return cpus;
}

}  // namespace zs
