#include <catch2/catch.hpp>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "comm/host/interfaces.h"
#include "comm/mesh.h"
#include "comm/world.h"
#include "comm/worlds/mpi_library.h"
#include "runtime/base/launch.h"
#include "runtime/base/parse_integer.h"

namespace launch_test {

using namespace zs;

namespace {

using Variables = std::map<std::string, std::string>;

Launch read(const Variables& variables) {
  return read_launch([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables operator+(Variables some, const Variables& more) {
  some.insert(more.begin(), more.end());
  return some;
}

/// Environments as launchers of Debian 12 make them, cut down to what has a meaning here.
const Variables kMpirun{{"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_RANK", "3"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_MCA_orte_num_nodes", "2"},
                        {"PMIX_NAMESPACE", "1323040769"},
                        {"PMIX_RANK", "3"}};
const Variables kJob{{"SLURM_JOB_ID", "12"},      {"SLURM_NTASKS", "4"},        {"SLURM_PROCID", "0"},
                     {"SLURM_LOCALID", "0"},      {"SLURM_CPUS_PER_TASK", "3"}, {"SLURM_NODEID", "0"},
                     {"SLURM_JOB_NUM_NODES", "2"}};
const Variables kStep{{"SLURM_JOB_ID", "12"},        {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_NTASKS", "7"},
                      {"SLURM_PROCID", "4"},         {"SLURM_LOCALID", "1"},
                      {"SLURM_STEP_NUM_NODES", "4"}, {"SLURM_NODEID", "2"},
                      {"SLURM_CPUS_PER_TASK", "3"},  {"SLURM_STEP_TASKS_PER_NODE", "1,2(x2),3"}};
const Variables kPmix{{"PMIX_NAMESPACE", "slurm.pmix.12.0"}, {"PMIX_RANK", "4"}};
const Variables kPmi2{{"PMI_RANK", "4"}, {"PMI_SIZE", "7"}, {"PMI_JOBID", "12.0"}};
const Variables kHydra{{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}, {"MPI_LOCALNRANKS", "3"}, {"MPI_LOCALRANKID", "2"}};
const Variables kPrte{{"PMIX_NAMESPACE", "prterun-host-99@1"}, {"PMIX_RANK", "2"}};

/// Sets variables of this process, until it dies.
class Environment {
 public:
  explicit Environment(Variables variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) REQUIRE(setenv(name.c_str(), value.c_str(), 1) == 0);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_)
      if (unsetenv(name.c_str()) != 0) std::abort();
  }

 private:
  Variables variables_;
};

}  // namespace

TEST_CASE("every launcher's environment gives the same facts") {
  struct Row {
    const char* what;
    Variables variables;
    Launch facts;
  };
  using enum ProcessManager;
  const auto launch = [](ProcessManager manager, const char* name, int rank, int size, int local_rank, int local_size,
                         int hosts, const char* job) {
    return Launch{.manager = manager,
                  .launcher = name,
                  .said_by = {},
                  .rank = rank,
                  .size = size,
                  .local_rank = local_rank,
                  .local_size = local_size,
                  .hosts = hosts,
                  .slurm_step = {},
                  .job = job};
  };
  const std::vector<Row> rows{
      {"nothing", {}, {}},
      {"mpirun", kMpirun, launch(open_mpi, "mpirun", 3, 4, 1, 2, 2, "1323040769")},
      {"mpirun's ranks on a host that srun has reached", kMpirun + kStep,
       launch(open_mpi, "mpirun", 3, 4, 1, 2, 2, "1323040769")},
      {"half of mpirun's variables", {{"OMPI_COMM_WORLD_SIZE", "8"}}, launch(open_mpi, "mpirun", 0, 8, 0, 8, 0, "")},
      {"srun --mpi=pmix", kStep + kPmix, launch(pmix, "srun", 4, 7, 1, 2, 4, "slurm.pmix.12.0")},
      {"srun --mpi=pmi2", kStep + kPmi2, launch(pmi, "srun", 4, 7, 1, 2, 4, "slurm.12.0")},
      {"srun --mpi=none", kStep, launch(none, "srun", 4, 7, 1, 2, 4, "slurm.12.0")},
      {"MPICH's mpiexec", kHydra, launch(pmi, "mpiexec (Hydra)", 5, 6, 2, 3, 0, "")},
      {"MPICH's mpiexec in a Slurm job, whose proxies srun has started", kStep + kHydra,
       launch(pmi, "mpiexec (Hydra)", 5, 6, 2, 3, 0, "")},
      {"a PMIx launcher, which says no size", kPrte,
       launch(pmix, "a PMIx launcher", 2, 0, 2, 0, 0, "prterun-host-99@1")},
      {"a PMIx launcher whose daemons srun has started", kPrte + kStep,
       launch(pmix, "a PMIx launcher", 2, 0, 2, 0, 0, "prterun-host-99@1")},
      {"MVAPICH",
       {{"MV2_COMM_WORLD_SIZE", "4"}, {"MV2_COMM_WORLD_RANK", "1"}},
       launch(none, "MVAPICH's launcher", 1, 4, 1, 4, 0, "")},
      {"torchrun",
       {{"WORLD_SIZE", "4"}, {"RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}},
       launch(none, "torchrun, or a launcher like it,", 3, 4, 1, 2, 0, "")},
      {"a batch script", kJob, {}},
      {"a shell of salloc", {{"SLURM_JOB_ID", "12"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "2"}}, {}},
      {"the step of a batch script", kJob + Variables{{"SLURM_STEP_ID", "4294967291"}}, {}},
      {"an interactive step", kJob + Variables{{"SLURM_STEPID", "4294967290"}}, {}},
      {"a step as older versions write it", kJob + Variables{{"SLURM_STEP_ID", "-5"}}, {}},
      {"numbers that are none",
       {{"WORLD_SIZE", "4x"}, {"PMI_SIZE", ""}, {"OMPI_COMM_WORLD_SIZE", "0"}, {"PMIX_RANK", "1"}},
       {}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const Launch is = read(row.variables);
    CHECK(is.manager == row.facts.manager);
    CHECK(is.launcher == row.facts.launcher);
    CHECK(std::vector{is.rank, is.size, is.local_rank, is.local_size, is.hosts} ==
          std::vector{row.facts.rank, row.facts.size, row.facts.local_rank, row.facts.local_size, row.facts.hosts});
    CHECK(is.job == row.facts.job);
    CHECK(is.slurm_step == (is.launcher == "srun" ? "12.0" : ""));
    CHECK(is.cpus_per_rank == (is.launcher == "srun" ? 3 : 0));
  }
}

TEST_CASE("Slurm says how many of the tasks are on a host, and whether they are bound to its CPUs") {
  const auto [list, node, tasks] = GENERATE(table<const char*, const char*, int>({{"4", "0", 4},
                                                                                  {"2(x3),5", "2", 2},
                                                                                  {"2(x3),5", "3", 5},
                                                                                  {"2(x3),5", "4", 7},
                                                                                  {"", "0", 7},
                                                                                  {"2(x", "0", 7},
                                                                                  {"1", "0", 7}}));
  Variables variables = kStep;
  variables["SLURM_STEP_TASKS_PER_NODE"] = list;
  variables["SLURM_NODEID"] = node;
  CHECK(read(variables).local_size == tasks);  // all of them, where it says nothing that can be
  CHECK_FALSE(read(variables).is_bound_by_user);
  CHECK_FALSE(read(variables + Variables{{"SLURM_CPU_BIND_TYPE", "none"}}).is_bound_by_user);
  CHECK(read(variables + Variables{{"SLURM_CPU_BIND_TYPE", "mask_cpu:"}}).is_bound_by_user);
}

TEST_CASE("ranks that the program's MPI cannot connect are refused with the right command for their launcher") {
  using enum MpiLibrary;
  const auto [library, variables, says, todo] = GENERATE(table<MpiLibrary, Variables, const char*, const char*>(
      {{open_mpi, kHydra, "mpiexec (Hydra) started 6 ranks, each of which Open MPI", "Open MPI's mpirun -np 6"},
       {open_mpi, kStep, "(SLURM_STEP_NUM_TASKS=7)", "srun --mpi=pmix -n 7, or without srun"},
       {open_mpi, kStep + kPmi2, "srun started 7 ranks", "srun --mpi=pmix -n 7"},
       {open_mpi, {{"WORLD_SIZE", "4"}, {"RANK", "0"}}, "torchrun, or a launcher like it, started 4", "mpirun -np 4"},
       {open_mpi, {{"MV2_COMM_WORLD_SIZE", "4"}}, "MVAPICH's launcher started 4 ranks", "mpirun -np 4"},
       {mpich, kMpirun, "mpirun started 4 ranks, each of which MPICH", "MPICH's mpiexec -n 4"},
       {mpich, kStep + kPmix, "srun started 7 ranks", "srun --mpi=pmi2 -n 7"},
       {mpich, kPrte, "a PMIx launcher started N ranks", "MPICH's mpiexec -n N"},
       {none, kMpirun, "mpirun started 4 ranks, and this build has no MPI", "set comm.ranks=4"},
       {none, kStep + kPmi2, "srun started 7 ranks, and this build has no MPI", "leave out srun"}}));
  try {
    accepted_launch(read(variables), library);
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    CHECK_THAT(error.what(), Catch::Contains(says) && Catch::Contains(todo) && !Catch::Contains("\n"));
  }
}

TEST_CASE("ranks that the program's MPI connects are a job, other launchers' single ranks are one process") {
  using enum MpiLibrary;
  for (const Variables& job : {kMpirun, kStep + kPmix, kPrte}) CHECK(accepted_launch(read(job), open_mpi).is_by_mpi());
  for (const Variables& job : {kHydra, kStep + kPmi2}) CHECK(accepted_launch(read(job), mpich).is_by_mpi());
  CHECK(accepted_launch(read({{"OMPI_COMM_WORLD_SIZE", "1"}}), open_mpi).is_by_mpi());
  CHECK_FALSE(accepted_launch(read({{"OMPI_COMM_WORLD_SIZE", "1"}}), none).is_by_mpi());
  const Variables one{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}};
  for (const Variables& alone : {one, one + kPmix, {{"PMI_SIZE", "1"}}, {{"WORLD_SIZE", "1"}, {"RANK", "3"}}}) {
    CHECK_FALSE(accepted_launch(read(alone), open_mpi).is_by_mpi());
    CHECK(accepted_launch(read(alone), open_mpi).rank == 0);
  }
}

TEST_CASE("the launch of this process is read from its own environment") {
  const Environment environment({{"WORLD_SIZE", "4"}, {"RANK", "1"}});
  CHECK(read_launch().rank == 1);
  CHECK_THROWS_WITH(detect_launch(), Catch::Contains("WORLD_SIZE=4"));
}

TEST_CASE("interfaces are named by themselves or by their addresses, each once") {
  CHECK(interfaces_of_host("") == "");
  for (const char* const wanted : {"lo", "127.0.0.1/32", "127.5.0.0/8", "lo,127.0.0.0/8"})
    CHECK(interfaces_of_host(wanted) == "lo");
  for (const char* const wanted :
       {"l", "lo,nope0", "126.0.0.0/8", "127.0.0.1", "127.0.0.1/33", "127.0.0.0/-1", "::2/128"}) {
    CAPTURE(wanted);
    CHECK_THROWS_WITH(interfaces_of_host(wanted), Catch::Contains("has no network interface or address \"") &&
                                                      Catch::Contains("lo") && Catch::Contains("10.1.0.0/16"));
  }
}

TEST_CASE("a mesh that does not fit the world is refused") {
  CHECK_THROWS_WITH(Mesh({{"a", 2}, {"b", 3}}, 0, 8), Catch::Contains("(a=2, b=3) is not made of the job's 8 ranks"));
  CHECK_THROWS_WITH(Mesh({{"a", 65536}, {"b", 65536}, {"c", 65536}, {"d", 65536}}, 0, 8), Catch::Contains("8 ranks"));
  CHECK_THROWS_WITH(Mesh({{"a", 2}, {"a", 4}}, 0, 8), Catch::Contains("two mesh axes are called a"));
  CHECK_THROWS_WITH(Mesh({{"a", 0}, {"b", 8}}, 0, 8), Catch::Contains("axis a has size 0"));
  CHECK_THROWS_WITH(Mesh({{"a", 8}}, 0, 8).size("b"), Catch::Contains("no axis b"));
}

TEST_CASE("a mesh is row-major") {
  const Mesh mesh({{"a", 2}, {"b", 3}, {"c", 4}}, 17, 24);
  CHECK(mesh.coordinate("a") == 1);
  CHECK(mesh.coordinate("b") == 1);
  CHECK(mesh.coordinate("c") == 1);
  CHECK(mesh.ranks_along("a") == std::vector{5, 17});
  CHECK(mesh.ranks_along("b") == std::vector{13, 17, 21});
  CHECK(mesh.ranks_along("c") == std::vector{16, 17, 18, 19});
}

TEST_CASE("a meta world makes the groups of a mesh and duplicates") {
  const auto world = make_meta_world(5, 8);
  const Mesh mesh({{"a", 2}, {"b", 4}}, 5, 8);
  CHECK(mesh.communicator(*world, "a")->size() == 2);
  CHECK(mesh.communicator(*world, "a")->rank() == 1);
  const auto comm = mesh.communicator(*world, "b");
  CHECK(comm->size() == 4);
  CHECK(comm->rank() == 1);
  CHECK(comm->split(0, 1)->size() == 4);
  CHECK_THROWS_WITH(comm->split(1, 1), Catch::Contains("only be duplicated"));
  CHECK(&comm->arena() == &world->communicator()->arena());
}

TEST_CASE("a number is a whole text, or none") {
  CHECK(parse_integer<int>("42") == 42);
  CHECK(parse_integer<int>("-7") == -7);
  CHECK(parse_integer<long>("4294967296") == 4294967296);
  for (const char* text : {"", " 4", "4 ", "4x", "+4", "0x4", "4.0", "99999999999"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_integer<int>(text));
  }
}

}  // namespace launch_test
