#include <cstdlib>
#include <optional>

#include "comm/world.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

/// Ranks that Slurm's srun has started. A batch script, or a shell of salloc, has the variables of its job, but is one
/// process: it is in no step, or in one that Slurm makes for itself, which have the highest numbers.
std::optional<long> ranks_of_srun() {
  constexpr long kFirstOwnStep = 0xfffffff0;
  auto step = number_in_environment<long>("SLURM_STEP_ID");
  if (!step) step = number_in_environment<long>("SLURM_STEPID");
  if (!step || *step < 0 || *step >= kFirstOwnStep || !std::getenv("SLURM_PROCID")) return std::nullopt;
  const auto in_step = number_in_environment<long>("SLURM_STEP_NUM_TASKS");
  return in_step ? in_step : number_in_environment<long>("SLURM_NTASKS");
}

}  // namespace

Launch detect_launch() {
  if (number_in_environment<int>("OMPI_COMM_WORLD_SIZE")) return Launch::mpirun;
  const auto refuse = [](const char* variable, long count) {
    throw Error(ExitCode::usage, fmt::format("another launcher started {} ranks", count),
                fmt::format("{}={}", variable, count),
                fmt::format("start it with Open MPI's mpirun -np {}, or unset {} to run one rank", count, variable));
  };
  for (const char* variable : {"PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE", "WORLD_SIZE"}) {
    if (const auto count = number_in_environment<long>(variable).value_or(1); count > 1) refuse(variable, count);
  }
  if (const auto count = ranks_of_srun().value_or(1); count > 1) {
    refuse(std::getenv("SLURM_STEP_NUM_TASKS") != nullptr ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", count);
  }
  return Launch::single;
}

}  // namespace zs
