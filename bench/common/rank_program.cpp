#include "bench/common/rank_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/gpu/gpu_world.h"
#include "comm/health/watchdog.h"
#include "model/job/version.h"
#include "model/train/rank/error_line.h"
#include "model/train/rank/program.h"
#include "runtime/base/standard_streams.h"

namespace zs::bench {
namespace {

std::string line_of(const std::string& name, const Error& error, const World* world = nullptr) {
  return error_line(error, world != nullptr && world->size() > 1 ? fmt::format("rank {}", world->rank()) : "", name);
}

/// Agreed by all ranks and told by one: its exit code, or ok.
ExitCode agreed(World& world, const std::string& name, const std::optional<Error>& problem) {
  const World::Agreement agreement =
      world.agree(problem ? static_cast<int>(problem->code()) : 0, problem ? line_of(name, *problem) : "");
  if (agreement.code != 0 && world.rank() == agreement.rank) print_to_stderr("{}\n", agreement.message);
  return static_cast<ExitCode>(agreement.code);
}

/// Collective: how this rank's options differ from the first rank's.
std::optional<Error> other_options(World& world, std::string own) {
  own.resize(std::min<std::size_t>(own.size(), 1000));  // what World::agree carries
  const std::string first = world.agree(world.rank() == 0 ? 1 : 0, own).message;
  if (own == first) return std::nullopt;
  // From where they part, with the word before: "--steps 3".
  auto from =
      static_cast<std::size_t>(std::mismatch(own.begin(), own.end(), first.begin(), first.end()).first - own.begin());
  for (int word = 0; word < 2 && from > 0; ++word) {
    const auto space = own.rfind(' ', from - 1);
    from = space == own.npos ? 0 : space;
  }
  const auto shown = [from](const std::string& options) {
    const std::string rest = options.substr(from + (options.compare(from, 1, " ") == 0 ? 1 : 0), 80);
    return rest.empty() ? "none" : rest;
  };
  return Error(ExitCode::ranks_disagree,
               fmt::format("the ranks differ in their options: rank {} has {}, rank 0 {}", world.rank(), shown(own),
                           shown(first)),
               "", "start every rank with the same program and options");
}

/// What is wrong with the command line.
ExitCode agreed_problem(World& world, const std::string& name, const RankProgram& program, const std::string& options,
                        std::optional<Error> problem) {
  if (const ExitCode code = agreed(world, name, problem); code != ExitCode::ok) return code;
  if (const ExitCode code = agreed(world, name, other_options(world, options)); code != ExitCode::ok) return code;
  try {
    if (program.check) program.check(world);
  } catch (const Error& error) {
    problem = error;
  }
  return agreed(world, name, problem);
}

void print_result(const std::string& text) {
  fmt::print("{}\n", text);
  if (std::fflush(stdout) != 0)
    throw Error(ExitCode::io, "the result cannot be written", "stdout", "send it where there is room");
}

/// One rank of a host tells, and of what another rank has caused that one.
ExitCode end_job(World& world, const std::string& name, const std::exception_ptr& problem) {
  const Error error = as_error(problem);
  if (is_consequence(problem)) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (world.watchdog() == nullptr || world.watchdog()->try_claim_report(error.what_happened()))
    print_to_stderr("{}\n", line_of(name, error, &world));
  if (world.size() > 1) world.abort(static_cast<int>(error.code()));
  return error.code();
}

ExitCode run(World& world, const std::string& name, const RankProgram& program, const std::string& options,
             const std::optional<Error>& problem) {
  try {
    const ExitCode code = agreed_problem(world, name, program, options, problem);
    if (code != ExitCode::ok) return code;
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
  std::string chosen;  // any, to say what is wrong over
  try {
    if (!problem) chosen = chosen_transport(transport);
  } catch (const Error& error) {
    problem = error;
  }
  return make_process_world(watched(), chosen);
}

std::unique_ptr<World> launched_world(std::optional<Error>& problem) {
  return detect_launch().is_by_mpi() ? ranks_over("auto", problem) : make_single_world(watched());
}

void add_min_time_option(CLI::App& app, double& seconds, const char* what) {
  const auto is_number = [](const std::string& text) {
    return std::isnan(std::strtod(text.c_str(), nullptr)) ? "it is not a number" : "";
  };
  app.add_option("--min-time", seconds, what)
      ->check(CLI::Range(0.0, 60.0))
      ->check(CLI::Validator(is_number, ""))
      ->capture_default_str();
}

int run_rank_program(int argc, char** argv, CLI::App& app, const RankProgram& program) {
  const std::string name = app.get_name();
  app.set_version_flag("--version", std::string("zshard ") + version());
  keep_standard_descriptors();
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
    const std::string options = fmt::format("{}", fmt::join(argv + 1, argv + argc, " "));
    return static_cast<int>(run(*world, name, program, options, problem));
  } catch (...) {
    const Error error = as_error(std::current_exception());
    print_to_stderr("{}\n", line_of(name, error));
    return static_cast<int>(error.code());
  }
}

}  // namespace zs::bench
