#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "comm/world.h"

namespace zs {
namespace {

std::optional<long> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return std::nullopt;
  long value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

struct Launcher {
  const char* count;  ///< the variable that says how many ranks
  const char* also;   ///< must be set too for the count to mean anything; null: nothing more
};

}  // namespace

Launch detect_launch() {
  if (number_in("OMPI_COMM_WORLD_SIZE")) return Launch::mpirun;
  constexpr Launcher kForeign[] = {
      {"PMI_SIZE", nullptr},   {"MPI_LOCALNRANKS", nullptr}, {"MV2_COMM_WORLD_SIZE", nullptr}, {"SLURM_NTASKS", "SLURM_PROCID"},
      {"WORLD_SIZE", nullptr},
  };
  for (const Launcher& launcher : kForeign) {
    const auto count = number_in(launcher.count);
    if (!count || *count <= 1 || (launcher.also && !std::getenv(launcher.also))) continue;
    throw Error(ExitCode::usage, fmt::format("another launcher started {} ranks", *count), fmt::format("{}={}", launcher.count, *count),
                fmt::format("start it with Open MPI's mpirun -np {}, or unset {} to run one rank", *count, launcher.count));
  }
  return Launch::single;
}

}  // namespace zs
