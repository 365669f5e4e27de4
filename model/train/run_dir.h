#pragma once

#include <string>

namespace zs {

/// What a run directory is made from.
struct RunDirRequest {
  std::string dir;   ///< run.dir; empty: runs/NAME-N with the next free N
  std::string name;  ///< the run's name
  bool overwrite = false;
};

/// Throws what create_run_dir would throw as far as that can be known, and creates nothing: Error(cannot_create) when the
/// place cannot be written or a named directory already holds a run (config.toml, metrics.jsonl or checkpoints) and `overwrite` is off.
void check_run_dir(const RunDirRequest& request);

/// Makes the directory with `config_toml` as its config.toml and returns its path. Of several starts at once each gets its own
/// directory, or, where the directory is named, all but one are refused. With `overwrite` the old run's config.toml,
/// metrics.jsonl, weights and checkpoints go; other files stay. On failure whatever this call made is removed again.
/// Call it on one rank only.
std::string create_run_dir(const RunDirRequest& request, const std::string& config_toml);

/// The runs/NAME-N with the highest N that holds something of the name `within`; empty when none does.
std::string latest_run_dir(const std::string& name, const std::string& within);

/// For a run that goes on in its directory: replaces its config.toml.
void reopen_run_dir(const std::string& dir, const std::string& config_toml);

}  // namespace zs
