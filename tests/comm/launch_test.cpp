#include <catch2/catch.hpp>

#include <cstdlib>
#include <map>
#include <string>

#include "comm/mesh.h"
#include "comm/world.h"
#include "runtime/base/parse_integer.h"

using namespace zs;

namespace {

constexpr const char* kVariables[] = {
    "OMPI_COMM_WORLD_SIZE", "PMIX_RANK",    "PMI_SIZE",   "PMI_RANK",      "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE",
    "SLURM_NTASKS",         "SLURM_PROCID", "WORLD_SIZE", "SLURM_STEP_ID", "SLURM_STEPID",    "SLURM_STEP_NUM_TASKS"};

/// Nothing of a launcher is set except `variables`, until it dies.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name : kVariables) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      REQUIRE(unsetenv(name) == 0);
    }
    for (const auto& [name, value] : variables) REQUIRE(setenv(name.c_str(), value.c_str(), 1) == 0);
  }
  ~Environment() {
    for (const char* name : kVariables) {
      const auto found = before_.find(name);
      const int rc = found == before_.end() ? unsetenv(name) : setenv(name, found->second.c_str(), 1);
      if (rc != 0) std::abort();
    }
  }

 private:
  std::map<std::string, std::string> before_;
};

}  // namespace

TEST_CASE("without a launcher's variables there is one rank") {
  const Environment environment({});
  CHECK(detect_launch() == Launch::single);
}

TEST_CASE("Open MPI's variables mean mpirun, whatever else is set") {
  const auto size = GENERATE("1", "8");
  const Environment environment(
      {{"OMPI_COMM_WORLD_SIZE", size}, {"PMIX_RANK", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}});
  CHECK(detect_launch() == Launch::mpirun);
}

TEST_CASE("another launcher's several ranks are refused") {
  const auto [variable, beside] = GENERATE(table<const char*, const char*>({{"PMI_SIZE", "PMI_RANK"},
                                                                            {"MPI_LOCALNRANKS", "PMI_RANK"},
                                                                            {"MV2_COMM_WORLD_SIZE", "PMI_RANK"},
                                                                            {"WORLD_SIZE", "PMIX_RANK"}}));
  const Environment environment({{variable, "4"}, {beside, "0"}});
  try {
    detect_launch();
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::usage);
    CHECK_THAT(error.what(), Catch::Contains(std::string(variable) + "=4") && Catch::Contains("mpirun -np 4") &&
                                 !Catch::Contains("\n"));
  }
}

TEST_CASE("another launcher's single rank, half a Slurm environment and nonsense are one rank") {
  const std::map<std::string, std::string> variables = GENERATE(
      std::map<std::string, std::string>{{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}},
      std::map<std::string, std::string>{{"SLURM_NTASKS", "4"}},
      std::map<std::string, std::string>{{"WORLD_SIZE", "4x"}}, std::map<std::string, std::string>{{"PMI_SIZE", ""}});
  const Environment environment(variables);
  CHECK(detect_launch() == Launch::single);
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

TEST_CASE("the ranks of Slurm's srun are refused, a batch script or a shell of the job is one rank") {
  using Variables = std::map<std::string, std::string>;
  const auto with = [](const Variables& more) {
    Variables all{{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}};
    all.insert(more.begin(), more.end());
    return all;
  };
  for (const Variables& step : {Variables{},
                                {{"SLURM_STEP_ID", "4294967291"}},
                                {{"SLURM_STEPID", "4294967290"}},
                                {{"SLURM_STEP_ID", "4294967294"}},
                                {{"SLURM_STEP_ID", "-5"}},
                                {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}}) {
    const Environment environment(with(step));
    CHECK(detect_launch() == Launch::single);
  }
  for (const auto& [step, says] :
       {std::pair(Variables{{"SLURM_STEP_ID", "0"}}, "SLURM_NTASKS=4"),
        std::pair(Variables{{"SLURM_STEPID", "3"}, {"SLURM_STEP_NUM_TASKS", "2"}}, "SLURM_STEP_NUM_TASKS=2")}) {
    const Environment environment(with(step));
    CHECK_THROWS_WITH(detect_launch(), Catch::Contains(says) && Catch::Contains("mpirun -np"));
  }
}
