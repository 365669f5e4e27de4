#pragma once

#include <functional>
#include <string>

#include "comm/world.h"
#include "model/train/cli/command.h"
#include "model/train/config/config.h"

namespace zs {

/// Work that ranks do together.
struct RankWork {
  Config config;
  std::string config_path;          ///< for messages
  std::string started;              ///< facts that ranks must have in common beside the configuration, a line each
  bool is_for_one_process = false;  ///< whatever comm.ranks says
  std::function<int(World& world)> run;
};

/// Finds out how the program was launched, and runs the work that `prepare` makes on every rank. What `prepare` throws
/// is told by one rank, and every rank ends with its code. Returns the exit code.
int run_on_ranks(const std::function<RankWork()>& prepare);
/// Ends every rank with the code of a problem that is known already, and one of them tells it.
int refuse_on_ranks(const Error& problem);

/// Prints all that the user wanted to know: 0, or 74 where it is lost.
int print_answer(const std::string& text);
/// True for the only process, and for the first of those that mpirun has started.
bool is_first_started();
/// Runs what one process does without asking others, and which a signal may end at once; where mpirun has started
/// several, the first one does it. Returns the exit code.
int run_alone(const std::function<int()>& work);
/// Prints an error's line, or, of a configuration, one for each problem, to stderr.
void print_error(const Error& error);
/// Advice at the end of a usage error: "see train evaluate --help".
std::string see_help(const Invocation& by);

}  // namespace zs
