#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "model/train/cli/rank_work.h"
#include "model/train/trainer/trainer.h"

namespace zs {

/// Options of all commands that read a configuration as training does.
struct RunOptions {
  std::string config_path;
  std::vector<std::string> overrides;
  std::string resume;
  bool overwrite = false, verify_order = false, verify_data = false;
};

/// Adds CONFIG.toml and --set.
void add_config_options(CLI::App& app, RunOptions& options);
/// Adds the options of where a run begins, and of what is verified.
void add_start_options(CLI::App& app, RunOptions& options);

/// The job that the options describe, its configuration read. Throws Error.
TrainJob train_job(const RunOptions& options, const Invocation& by);
/// A Trainer of it, on every rank.
RankWork train_work(TrainJob job);

}  // namespace zs
