#include "bench/rank_program.h"

#include <cstdio>
#include <optional>

#include "model/train/error_line.h"
#include "model/train/program.h"
#include "model/version.h"

namespace zs::bench {
namespace {

std::string line_of(const std::string& name, const Error& error, const World* world = nullptr) {
  return error_line(error, world != nullptr && world->size() > 1 ? fmt::format("rank {}", world->rank()) : "", name);
}

/// What is wrong with the command line, agreed by all ranks and told by one: its exit code, or ok.
ExitCode agreed_problem(World& world, const std::string& name, const RankProgram& program, std::optional<Error> problem) {
  try {
    if (!problem && program.check) program.check(world);
  } catch (const Error& error) {
    problem = error;
  }
  const World::Agreement agreement = world.agree(problem ? static_cast<int>(problem->code()) : 0, problem ? line_of(name, *problem) : "");
  if (agreement.code != 0 && world.rank() == agreement.rank) fmt::print(stderr, "{}\n", agreement.message);
  return static_cast<ExitCode>(agreement.code);
}

ExitCode run(World& world, const std::string& name, const RankProgram& program, const std::optional<Error>& problem) {
  try {
    const ExitCode agreed = agreed_problem(world, name, program, problem);
    if (agreed != ExitCode::ok) return agreed;
    const ProgramOutput output = program.body(world);
    if (world.rank() == 0) fmt::print("{}\n", output.text);
    std::fflush(stdout);
    return output.code;
  } catch (...) {
    const Error error = as_error(std::current_exception());
    fmt::print(stderr, "{}\n", line_of(name, error, &world));
    std::fflush(nullptr);
    if (world.size() > 1) world.abort(static_cast<int>(error.code()));
    return error.code();
  }
}

}  // namespace

std::unique_ptr<World> launched_world() { return detect_launch() == Launch::mpirun ? make_process_world({}) : make_single_world({}); }

int run_rank_program(int argc, char** argv, CLI::App& app, const RankProgram& program) {
  const std::string name = app.get_name();
  app.set_version_flag("--version", std::string("zshard ") + version());
  limit_spinning(argv);
  try {
    std::optional<Error> problem;
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& success) {  // --help, --version
      return app.exit(success);
    } catch (const CLI::ParseError& error) {
      problem.emplace(ExitCode::usage, error.what(), "command line", fmt::format("see {} --help", name));
    }
    const auto world = program.make_world();
    return static_cast<int>(run(*world, name, program, problem));
  } catch (...) {
    const Error error = as_error(std::current_exception());
    fmt::print(stderr, "{}\n", line_of(name, error));
    return static_cast<int>(error.code());
  }
}

}  // namespace zs::bench
