#pragma once

#include <functional>
#include <string>

#include "model/train/run_dir/run_mark.h"

namespace zs {

/// Files for people and for TensorBoard (model/train/report): a run may be without them.
inline constexpr const char* kReportFile = "report.html";
inline constexpr const char* kEventsFile = "events.out.tfevents.zshard";

/// Request that a run directory is made from.
struct RunDirRequest {
  std::string dir;         ///< run.dir; empty: runs/NAME-N with the next free N
  std::string name;        ///< the run's name
  bool overwrite = false;  ///< a run that is there may go
  bool restart = false;    ///< a run may go where it has neither a checkpoint nor final weights
};

/// Throws what create_run_dir would throw as far as that can be known, and creates nothing: Error(cannot_create) when
/// the place cannot be written, when a run is there that the request does not replace, or when something is in the way
/// that no run has written (run_mark.h).
void check_run_dir(const RunDirRequest& request);

/// Makes the directory with `config_toml` as its config.toml and returns its path. Of several starts at once each gets
/// its own directory, or, where the directory is named, all but one are refused. Of a run that is replaced goes what it
/// has written: config.toml, metrics.jsonl, weights and checkpoints; whatever else there is stays. On failure whatever
/// this call made is removed again. Call it on one rank only.
std::string create_run_dir(const RunDirRequest& request, const std::string& config_toml);

/// Advice to who wants to start a run in the named `dir`, in which there is no checkpoint to go on from: what will be
/// accepted.
std::string how_to_start(const std::string& dir);

/// The runs/NAME-N with the highest N for which `is_wanted`; empty when there is none.
std::string latest_run_dir(const std::string& name, const std::function<bool(const std::string& dir)>& is_wanted);

/// Checks the directory for a run that is to go on in it. Error(cannot_create) where it cannot be written, or something
/// has taken the place of what it writes at its end.
void check_reopen(const std::string& dir, const RunMark& mark);

/// The run goes on: replaces its config.toml, and removes what writing files left when it was killed. A config.toml
/// that is not as the run wrote it is renamed first; returns its new path, or nothing.
std::string reopen_run_dir(const std::string& dir, RunMark& mark, const std::string& config_toml);

/// Directory of the run, if `config_path` is the config.toml that the run wrote there, or what became of that; else
/// empty.
std::string run_dir_of_config(const std::string& config_path);

}  // namespace zs
