#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/world.h"
#include "runtime/base/check.h"

namespace zs::bench {

/// What a benchmark prints on rank 0, nothing where all is said, and how it ends.
struct ProgramOutput {
  std::string text;
  ExitCode code = ExitCode::ok;
};

/// A benchmark, seen from one of the ranks that run it.
struct RankProgram {
  /// The job's ranks. Called once the command line is read, be it right or wrong (`problem`). What is wrong with the
  /// environment becomes the problem, where there is none, and is told over ranks that come about without it.
  std::function<std::unique_ptr<World>(std::optional<Error>& problem)> make_world;
  /// Throws what all ranks see alike to be wrong with the command line; one of them tells. May be empty.
  std::function<void(const World&)> check;
  std::function<ProgramOutput(World&)> body;
};

/// The ranks that mpirun started, or one alone. For RankProgram::make_world.
std::unique_ptr<World> launched_world(std::optional<Error>& problem);
/// Those that mpirun started, over this transport.
std::unique_ptr<World> ranks_over(const std::string& transport, std::optional<Error>& problem);

/// `flag`: at least how long each row is measured.
void add_min_time_option(CLI::App& app, double& seconds, const char* what);

/// Reads the command line into what `app` was told, with --version, then launches and runs `program`; returns the exit
/// code. Whatever goes wrong is told in one line.
int run_rank_program(int argc, char** argv, CLI::App& app, const RankProgram& program);

}  // namespace zs::bench
