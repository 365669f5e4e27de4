#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string_view>
#include <vector>

#include "runtime/base/check.h"

namespace zs {

/// A command, and the options that it takes; a KeyUse says which keys of --set.
struct CommandOptions {
  std::string_view name;                  ///< the option that asks for it, "--export"; empty: training, and dry runs
  std::vector<std::string_view> options;  ///< beside that
  bool has_argument = true;               ///< something stands in the configuration's place
};

/// The command that the command line asks for; of several, the first of the table.
const CommandOptions& command_given(const CLI::App& app);

/// An error that names an option which is given and the command has no use for.
std::optional<Error> misplaced(const CLI::App& app, const CommandOptions& command);

}  // namespace zs
