#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

#include "model/train/inference/tokenize.h"
#include "runtime/base/check.h"

namespace zs {

void add_tokenize_options(CLI::App& app, TokenizeJob& job);

/// Error where an option that only --tokenize takes is given without it.
std::optional<Error> misplaced(const TokenizeJob& job);

/// --tokenize: its exit code. `first_input`: what the command line has in the configuration's place. Throws Error: also
/// for what is wrong with its command line.
int tokenize(TokenizeJob& job, const std::string& first_input);

}  // namespace zs
