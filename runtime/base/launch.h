#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace zs {

/// Interface over which the ranks of a launcher find each other. An MPI library must have been built for it.
enum class ProcessManager : std::uint8_t {
  none,      ///< no launcher, or one that only starts processes (srun --mpi=none, torchrun)
  open_mpi,  ///< Open MPI's mpirun
  pmix,      ///< PMIx: srun --mpi=pmix, prterun, prun
  pmi,       ///< PMI 1 or 2: MPICH's mpiexec (Hydra), srun --mpi=pmi2
};

/// Facts about a rank that its launcher has put into the environment. A process without a launcher is one rank; so is a
/// batch script or a shell of Slurm, which has variables of its job, but is no task of a step.
struct Launch {
  ProcessManager manager = ProcessManager::none;
  std::string launcher;           ///< "mpirun", "srun", "mpiexec (Hydra)"; empty: none
  std::string said_by;            ///< the variable that gives the size, "SLURM_STEP_NUM_TASKS=4"
  int rank = 0, size = 1;         ///< size 0: only MPI knows
  int local_rank = 0;             ///< rank on this host
  int local_size = 1;             ///< ranks on this host; 0: only MPI knows
  int hosts = 1;                  ///< 0: the launcher does not say
  int cpus_per_rank = 0;          ///< that the user asked for; 0: not said
  bool is_bound_by_user = false;  ///< Slurm has bound each task to CPUs of its own
  std::string slurm_step;         ///< "12.0", as scancel takes it; empty: not started by srun
  std::string job;                ///< name that the job's ranks share on a host, and no other job has; empty: none

  bool has_several_ranks() const { return size != 1; }
  /// True if MPI makes one job of the ranks.
  bool is_by_mpi() const { return manager != ProcessManager::none; }
};

/// Reads the facts from `variable(name)`, an environment: null where a variable is not set. mpirun's word counts most,
/// since inside another launcher's step its ranks have that one's variables too.
Launch read_launch(const std::function<const char*(const char*)>& variable);
/// Reads the facts from this process's environment.
Launch read_launch();

}  // namespace zs
