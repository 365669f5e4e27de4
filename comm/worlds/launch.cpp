#include <string>

#include "comm/world.h"
#include "comm/worlds/mpi_library.h"

namespace zs {
namespace {

bool connects(MpiLibrary library, ProcessManager manager) {
  if (library == MpiLibrary::none) return false;
  if (library == MpiLibrary::mpich) return manager == ProcessManager::pmi;
  return manager == ProcessManager::open_mpi || manager == ProcessManager::pmix;
}

/// Number of ranks as it is written; "N" where only MPI knows it.
std::string count(const Launch& launch) { return launch.size == 0 ? "N" : std::to_string(launch.size); }

/// Command that starts so many ranks of the library, by Slurm if that is what has started these.
std::string right_command(MpiLibrary library, const Launch& launch) {
  const bool is_mpich = library == MpiLibrary::mpich;
  if (!launch.slurm_step.empty()) return fmt::format("srun --mpi={} -n {}", is_mpich ? "pmi2" : "pmix", count(launch));
  return fmt::format("{} {}", is_mpich ? "MPICH's mpiexec -n" : "Open MPI's mpirun -np", count(launch));
}

}  // namespace

Launch accepted_launch(const Launch& launch, MpiLibrary library) {
  if (connects(library, launch.manager) && (launch.has_several_ranks() || launch.launcher == "mpirun")) return launch;
  if (!launch.has_several_ranks()) return {};
  if (library == MpiLibrary::none)
    throw Error(ExitCode::usage,
                fmt::format("{} started {} ranks, and this build has no MPI", launch.launcher, count(launch)),
                launch.said_by,
                fmt::format("leave out {0} and set comm.ranks={1}, for ranks as threads of one process, or use a build "
                            "with MPI",
                            launch.launcher, count(launch)));
  throw Error(
      ExitCode::usage,
      fmt::format("{} started {} ranks, each of which {} would take for a job of its own", launch.launcher,
                  count(launch), library == MpiLibrary::mpich ? "MPICH" : "Open MPI"),
      launch.said_by,
      fmt::format("start it with {}, or without {} for one rank", right_command(library, launch), launch.launcher));
}

Launch detect_launch() { return accepted_launch(read_launch(), mpi_of_this_build()); }

}  // namespace zs
