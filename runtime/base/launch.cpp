#include "runtime/base/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

class Reader {
 public:
  explicit Reader(const std::function<const char*(const char*)>& variable) : variable_(variable) {}
  std::string text(const char* name) const {
    const char* const value = variable_(name);
    return value != nullptr ? value : "";
  }
  /// A number of at least `least`.
  std::optional<int> number(const char* name, int least) const {
    const auto value = parse_integer<int>(text(name));
    return value && *value >= least ? value : std::nullopt;
  }

 private:
  const std::function<const char*(const char*)>& variable_;
};

/// Names of the variables in which launchers give the same facts. Null: not given.
struct Names {
  const char *size, *rank, *local_size, *local_rank, *hosts;
};

constexpr Names kOpenMpi{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_MCA_orte_num_nodes"};
constexpr Names kPmix{nullptr, "PMIX_RANK", nullptr, nullptr, nullptr};
constexpr Names kHydra{"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID", nullptr};
constexpr Names kMvapich{"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_SIZE",
                         "MV2_COMM_WORLD_LOCAL_RANK", nullptr};
constexpr Names kTorchrun{"WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", nullptr};

/// Facts under these names; nothing without a size, where there is a name for it.
std::optional<Launch> facts(const Reader& reader, const Names& names, ProcessManager manager, const char* launcher) {
  const auto number = [&](const char* name, int least, int otherwise) {
    return name != nullptr ? reader.number(name, least).value_or(otherwise) : otherwise;
  };
  Launch launch{.manager = manager, .launcher = launcher, .said_by = {}, .slurm_step = {}, .job = {}};
  launch.size = number(names.size, 1, 0);
  if (names.size != nullptr && launch.size == 0) return std::nullopt;
  if (names.size != nullptr) launch.said_by = fmt::format("{}={}", names.size, launch.size);
  launch.rank = number(names.rank, 0, 0);
  launch.local_size = number(names.local_size, 1, launch.size);
  launch.local_rank = number(names.local_rank, 0, launch.rank);
  if (launch.size > 0 && launch.rank >= launch.size) launch.rank = 0;
  launch.hosts = number(names.hosts, 1, launch.size == 1 ? 1 : 0);
  return launch;
}

/// The part of "2(x3),1", tasks of each node in turn, that is node `node`'s; 0: there is none.
int tasks_of_node(std::string_view list, int node) {
  while (!list.empty() && node >= 0) {
    const std::string_view part = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), part.size() + 1));
    const auto bracket = part.find("(x");
    const auto tasks = parse_integer<int>(part.substr(0, bracket));
    std::optional<int> nodes = 1;
    if (bracket != part.npos) nodes = parse_integer<int>(part.substr(bracket + 2, part.find(')') - bracket - 2));
    if (!tasks || !nodes || *nodes < 1) return 0;
    if (node < *nodes) return *tasks;
    node -= *nodes;
  }
  return 0;
}

/// Facts about a task that srun has started. A batch script, or a shell of salloc, has the variables of its job, but is
/// one process: it is in no step, or in one that Slurm makes for itself, which have the highest numbers.
std::optional<Launch> facts_of_step(const Reader& reader) {
  constexpr long kFirstOwnStep = 0xfffffff0;
  auto step = parse_integer<long>(reader.text("SLURM_STEP_ID"));
  if (!step) step = parse_integer<long>(reader.text("SLURM_STEPID"));
  if (!step || *step < 0 || *step >= kFirstOwnStep || !reader.number("SLURM_PROCID", 0)) return std::nullopt;
  const char* const size = reader.number("SLURM_STEP_NUM_TASKS", 1) ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  auto launch = facts(reader, {size, "SLURM_PROCID", nullptr, "SLURM_LOCALID", "SLURM_STEP_NUM_NODES"},
                      ProcessManager::none, "srun");
  if (!launch) return std::nullopt;
  const int tasks =
      tasks_of_node(reader.text("SLURM_STEP_TASKS_PER_NODE"), reader.number("SLURM_NODEID", 0).value_or(0));
  if (tasks > launch->local_rank) launch->local_size = tasks;
  launch->cpus_per_rank = reader.number("SLURM_CPUS_PER_TASK", 1).value_or(0);
  const std::string binding = reader.text("SLURM_CPU_BIND_TYPE");
  launch->is_bound_by_user = !binding.empty() && !binding.starts_with("none");
  launch->slurm_step = fmt::format("{}.{}", reader.text("SLURM_JOB_ID"), *step);
  launch->job = "slurm." + launch->slurm_step;
  return launch;
}

/// Other launchers' daemons are steps of Slurm too, so a rank of PMIx or PMI is Slurm's only where that says so itself.
std::optional<Launch> facts_of_pmi(const Reader& reader) {
  const bool has_hydra = reader.number("MPI_LOCALNRANKS", 1).has_value();
  auto step = has_hydra ? std::nullopt : facts_of_step(reader);
  auto launch = step ? step : facts(reader, kHydra, ProcessManager::pmi, "mpiexec (Hydra)");
  if (!reader.number("PMI_SIZE", 1)) return std::nullopt;
  launch->manager = ProcessManager::pmi;
  return launch;
}

std::optional<Launch> facts_of_pmix(const Reader& reader) {
  const std::string job = reader.text("PMIX_NAMESPACE");
  if (job.empty() || !reader.number("PMIX_RANK", 0)) return std::nullopt;
  auto step = job.starts_with("slurm.") ? facts_of_step(reader) : std::nullopt;
  auto launch = step ? step : facts(reader, kPmix, ProcessManager::pmix, "a PMIx launcher");
  launch->manager = ProcessManager::pmix;
  launch->job = job;
  return launch;
}

}  // namespace

Launch read_launch(const std::function<const char*(const char*)>& variable) {
  const Reader reader(variable);
  if (auto launch = facts(reader, kOpenMpi, ProcessManager::open_mpi, "mpirun")) {
    launch->job = reader.text("PMIX_NAMESPACE");
    return *launch;
  }
  if (auto launch = facts_of_pmix(reader)) return *launch;
  if (auto launch = facts_of_pmi(reader)) return *launch;
  if (auto launch = facts_of_step(reader)) return *launch;
  if (auto launch = facts(reader, kMvapich, ProcessManager::none, "MVAPICH's launcher")) return *launch;
  if (auto launch = facts(reader, kTorchrun, ProcessManager::none, "torchrun, or a launcher like it,")) return *launch;
  return {};
}

Launch read_launch() {
  return read_launch([](const char* name) { return std::getenv(name); });
}

}  // namespace zs
