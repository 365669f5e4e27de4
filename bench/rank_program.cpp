#include "bench/rank_program.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/gpu_world.h"
#include "comm/watchdog.h"
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

void print_result(const std::string& text) {
  fmt::print("{}\n", text);
  if (std::fflush(stdout) != 0) throw Error(ExitCode::io, "the result cannot be written", "stdout", "send it where there is room");
}

/// One rank of a host tells, and of what another rank has caused that one.
ExitCode end_job(World& world, const std::string& name, const std::exception_ptr& problem) {
  const Error error = as_error(problem);
  if (is_consequence(problem)) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (world.watchdog() == nullptr || world.watchdog()->claim_report()) fmt::print(stderr, "{}\n", line_of(name, error, &world));
  if (world.size() > 1) world.abort(static_cast<int>(error.code()));
  return error.code();
}

ExitCode run(World& world, const std::string& name, const RankProgram& program, const std::optional<Error>& problem) {
  try {
    const ExitCode agreed = agreed_problem(world, name, program, problem);
    if (agreed != ExitCode::ok) return agreed;
    const ProgramOutput output = program.body(world);
    if (world.rank() == 0 && !output.text.empty()) print_result(output.text);
    return output.code;
  } catch (...) {
    return end_job(world, name, std::current_exception());
  }
}

/// No benchmark comes to such a limit, but looking whether it has costs what it costs in a training.
WorldOptions watched() { return {.watch = {.step_s = 1e9}}; }

}  // namespace

std::unique_ptr<World> ranks_over(const std::string& transport, std::optional<Error>& problem) {
  std::string chosen = "mpi";
  try {
    if (!problem) chosen = chosen_transport(transport);
  } catch (const Error& error) {
    problem = error;
  }
  return make_process_world(watched(), chosen);
}

std::unique_ptr<World> launched_world(std::optional<Error>& problem) {
  return detect_launch() == Launch::mpirun ? ranks_over("auto", problem) : make_single_world(watched());
}

void add_min_time_option(CLI::App& app, double& seconds, const char* what) {
  const auto is_number = [](const std::string& text) { return std::isnan(std::strtod(text.c_str(), nullptr)) ? "it is not a number" : ""; };
  app.add_option("--min-time", seconds, what)->check(CLI::Range(0.0, 60.0))->check(CLI::Validator(is_number, ""))->capture_default_str();
}

int run_rank_program(int argc, char** argv, CLI::App& app, const RankProgram& program) {
  const std::string name = app.get_name();
  app.set_version_flag("--version", std::string("zshard ") + version());
  set_nccl_environment();
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
    const auto world = program.make_world(problem);
    return static_cast<int>(run(*world, name, program, problem));
  } catch (...) {
    const Error error = as_error(std::current_exception());
    fmt::print(stderr, "{}\n", line_of(name, error));
    return static_cast<int>(error.code());
  }
}

}  // namespace zs::bench
