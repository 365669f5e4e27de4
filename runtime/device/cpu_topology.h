#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zs {

/// The CPUs on which one rank runs.
struct CpuShare {
  std::vector<int> cpus;    ///< ascending; several ranks may have the same ones
  int threads = 1;          ///< team of the compute stream
  bool is_shared = false;   ///< other ranks have the same CPUs, since there are not enough
  std::string description;  ///< "2 threads on CPUs 0-1", "2 threads on CPUs 0-15 (quota 4.5 CPUs)"
};

/// CPUs and limits that a share is computed from; see cpu_share for where they come from.
struct CpuSituation {
  std::vector<int> allowed;          ///< CPUs that the job may use on this host
  std::vector<int> bound;            ///< this process's own affinity
  bool is_bound_by_user = false;     ///< the user asked the launcher for `bound`: it is this rank's share already
  std::string omp_num_threads;       ///< the variable; empty when it is not set
  int cpus_per_rank = 0;             ///< that the user asked the launcher for; 0: not said
  std::optional<double> quota = {};  ///< CPUs that the job's control group may use on average
};

/// The share of rank `local_rank` of the `local_size` ranks on this host. mpirun binds one or two ranks to a core each
/// unless told otherwise; that default is undone, a binding that the user asked for is kept. Ranks get disjoint
/// consecutive shares when there are CPUs enough, else all run on all. Threads: OMP_NUM_THREADS, else the CPUs of the
/// share, or fewer where the launcher was asked for fewer (srun --cpus-per-task), but together no more than the CPU
/// quota of the job's control group: more would only be stopped in turn. Changes nothing. Throws Error(usage) when
/// OMP_NUM_THREADS is not a number from 1 to 1024 (the first of a list counts).
CpuShare cpu_share(int local_rank, int local_size);
/// Computes the share from a given situation.
CpuShare cpu_share(int local_rank, int local_size, const CpuSituation& situation);

/// True if Open MPI's variables say that the user chose the binding (--bind-to, --cpu-set, --cpu-list, a PE= mapping,
/// or one of these through --mca). `variable(name)` is the environment: null when not set.
bool is_binding_explicit(const std::function<const char*(const char*)>& variable);

/// "0-1,4" of {0, 1, 4}.
std::string cpu_list(const std::vector<int>& cpus);

/// Lets the calling thread run on these CPUs only; threads that it starts inherit that. Throws Error(usage) when the
/// system refuses.
void bind_this_thread(const std::vector<int>& cpus);
/// The calling thread's affinity, ascending.
std::vector<int> affinity_of_this_thread();

}  // namespace zs
