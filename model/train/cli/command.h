#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/train/rank/time_limit.h"

namespace zs {

/// Way in which a command was asked for.
struct Invocation {
  TimeLimit::Clock::time_point started;  ///< when this process began
  std::string program_folder;            ///< data is looked up there, too
  std::string name;  ///< for messages: "evaluate", or the option of earlier versions, "--evaluate"; empty: training
  bool is_alias = false;  ///< by that option

  /// Names of an argument or option, which was spelled otherwise beside that option.
  const char* spelled(const char* now, const char* before) const { return is_alias ? before : now; }
};

/// A command of the program, `train NAME ...`. Everything that differs between commands is a member here; each is one
/// file beside this one, and a line in commands.h. Immutable.
struct Command {
  /// Does the work once the arguments are parsed, and returns the exit code.
  using Action = std::function<int()>;

  std::string_view name;                       ///< "evaluate"
  std::string_view other_name = {};            ///< "train" for "run"; empty: none
  std::vector<std::string_view> aliases = {};  ///< options that asked for it in earlier versions: "--evaluate"
  std::string_view usage;                      ///< its arguments: "RUN [FILE...]"
  std::string_view summary;                    ///< one line of `train --help`
  /// Adds the arguments and options to `app`, in memory that the action owns. The action throws Error.
  Action (*add)(CLI::App& app, const Invocation& by);
};

/// Checks a name that may not be empty, for CLI::Option::check.
std::string not_empty(const std::string& text);

/// Parses the command line, runs the command that it asks for, and returns its exit code.
int run_command_line(int argc, char** argv, Invocation by);

}  // namespace zs
