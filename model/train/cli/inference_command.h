#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include "model/train/inference/evaluate.h"
#include "model/train/inference/sample_run.h"

namespace zs {

/// Part of the command line that asks for something of a model that is there.
struct InferenceCommand {
  std::string evaluated, sampled;  ///< a run, or a checkpoint; empty: nothing of the kind is asked
  EvaluateRequest evaluate;
  SampleRequest sample;
  SavedModel model;             ///< model that was found
  std::string first_of_sample;  ///< first of --sample's own options that are given; empty: none

  bool is_wanted() const { return !evaluated.empty() || !sampled.empty(); }
};

void add_inference_options(CLI::App& app, InferenceCommand& command);

/// An error where its options do not go together, or have wrong values.
std::optional<Error> misplaced(const InferenceCommand& command);

/// Finds the model, and its configuration with these overrides (--set).
Config load(InferenceCommand& command, const std::vector<std::string>& overrides);

/// Description of what ranks must have in common, a line each.
std::string describe(const InferenceCommand& command);

/// Collective: what is asked for. The exit code.
int run(World& world, const Config& config, const InferenceCommand& command);

}  // namespace zs
