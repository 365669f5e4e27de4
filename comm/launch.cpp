#include <cstdlib>

#include "comm/world.h"
#include "runtime/base/whole_number.h"

namespace zs {
namespace {

struct Launcher {
  const char* count;  ///< the variable that says how many ranks
  const char* also;   ///< must be set too for the count to mean anything; null: nothing more
};

}  // namespace

Launch detect_launch() {
  if (number_in_environment<int>("OMPI_COMM_WORLD_SIZE")) return Launch::mpirun;
  constexpr Launcher kForeign[] = {
      {"PMI_SIZE", nullptr},   {"MPI_LOCALNRANKS", nullptr}, {"MV2_COMM_WORLD_SIZE", nullptr}, {"SLURM_NTASKS", "SLURM_PROCID"},
      {"WORLD_SIZE", nullptr},
  };
  for (const Launcher& launcher : kForeign) {
    const auto count = number_in_environment<long>(launcher.count);
    if (!count || *count <= 1 || (launcher.also && !std::getenv(launcher.also))) continue;
    throw Error(ExitCode::usage, fmt::format("another launcher started {} ranks", *count), fmt::format("{}={}", launcher.count, *count),
                fmt::format("start it with Open MPI's mpirun -np {}, or unset {} to run one rank", *count, launcher.count));
  }
  return Launch::single;
}

}  // namespace zs
