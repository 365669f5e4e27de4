#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include "model/train/inference/evaluate.h"
#include "model/train/inference/sample_run.h"

namespace zs {

/// What the command line asks of a model that is there.
struct InferenceCommand {
  std::string evaluated, sampled;  ///< a run, or a checkpoint; empty: nothing of the kind is asked
  EvaluateRequest evaluate;
  SampleRequest sample;
  SavedModel model;             ///< what it was found to be
  std::string first_of_sample;  ///< of --sample's own options that are given, the first; empty: none

  bool is_wanted() const { return !evaluated.empty() || !sampled.empty(); }
};

void add_inference_options(CLI::App& app, InferenceCommand& command);

/// An error where its options do not go together, or have wrong values.
std::optional<Error> misplaced(const InferenceCommand& command);

/// Finds the model, and its configuration with these overrides (--set).
Config load(InferenceCommand& command, const std::vector<std::string>& overrides);

/// What ranks must have in common, a line each.
std::string describe(const InferenceCommand& command);

/// Collective: what is asked for. The exit code.
int run(World& world, const Config& config, const InferenceCommand& command);

}  // namespace zs
