#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "model/train/profile/step_explainer.h"

namespace zs {

/// --explain and --trace as the command line has them.
struct ExplainOptions {
  CLI::Option* explain = nullptr;
  std::string steps, trace;
};

void add_explain_options(CLI::App& app, ExplainOptions& options);

/// Request that the options make. Where --explain stands before the configuration's name and without a number, it has
/// taken that name: then it is `config_path`. Error(usage).
ExplainRequest explain_request(const ExplainOptions& options, std::string& config_path);

/// Description of the request, a line each: what ranks must have in common.
std::string describe(const ExplainRequest& request);

}  // namespace zs
