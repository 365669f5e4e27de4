#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/train/inference/tokenize.h"
#include "runtime/base/check.h"

namespace zs {

void add_tokenize_options(CLI::App& app, TokenizeJob& job);

/// Error where an option that only --tokenize takes is given without it.
std::optional<Error> misplaced(const TokenizeJob& job);

/// --show-document: a document of a configuration's training data, as it is trained on.
struct ShowDocument {
  std::int64_t number = 0;  ///< from 1; 0: not asked for
  bool is_wanted() const { return number > 0; }
};
void add_show_options(CLI::App& app, ShowDocument& shown);
/// The text. Throws Error. `program`: how it was started, for where data is looked up.
std::string show_document(const ShowDocument& shown, const std::string& config,
                          const std::vector<std::string>& overrides, const char* program);

/// --tokenize: its exit code. `first_input`: what the command line has in the configuration's place. Throws Error: also
/// for what is wrong with its command line.
int tokenize(TokenizeJob& job, const std::string& first_input);

}  // namespace zs
