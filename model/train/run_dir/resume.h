#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/data/dataset.h"
#include "model/train/config/config.h"
#include "model/train/config/config_schema.h"
#include "model/train/run_dir/run_mark.h"

namespace zs {

/// Request of `--resume`, beside where runs are.
struct ResumeRequest {
  std::string what;        ///< "latest", "latest-valid", "auto", a checkpoint's folder or a run's
  std::string run_dir;     ///< run.dir; empty: not given
  std::string name;        ///< the run's
  bool overwrite = false;  ///< later checkpoints of the run may go
};

/// Place where a run goes on.
struct ResumePoint {
  std::string checkpoint;             ///< its folder
  std::int64_t step = 0;              ///< by its name
  std::string run_dir;                ///< goes on in this one; empty: a new run begins from another one's checkpoint
  std::vector<std::int64_t> damaged;  ///< later checkpoints of that run that do not verify (latest-valid only)
};

/// The directory that a run is asked to be in; empty: the next runs/NAME-N. It is run.dir; a config.toml that a run
/// wrote stands for the run's own directory, wherever that is now, if run.dir was named or the run continues
/// (`resume`).
std::string run_dir_asked_for(const Config& config, const std::string& config_path, const std::string& resume);

/// load_config for a run that is to go on (`resume` is not empty): where the folder of model.path is gone, the
/// checkpoint says what the model is.
Config load_resumed_config(const std::string& path, const std::vector<std::string>& overrides,
                           const std::string& resume);

/// True if `what` names a place that is found in the run's directory, and no folder.
bool is_in_run_dir(const std::string& what);

/// Finds the checkpoint. Folders that are being written or removed are none. `latest` is the newest, good or not;
/// `latest-valid` the newest of which every byte verifies; `auto` is `latest` where there is a checkpoint, and else
/// nothing: the run is to start. Error(checkpoint) when there is none otherwise; Error(cannot_create) when the run has
/// later ones that would be in the way, or its directory has no mark (run_mark.h). Changes nothing; on one rank only.
std::optional<ResumePoint> find_checkpoint(const ResumeRequest& request);

/// Sets aside (as step-N.damaged) or removes what is in the way of going on from `point`, and removes what a save that
/// was killed left to remove: half checkpoints, and the oldest until `keep` are left (0: all stay), beside that of step
/// `best`. Only what the `mark` lists is ever removed.
void clear_way(const ResumePoint& point, const RunMark& mark, std::int64_t keep, std::optional<std::int64_t> best = {});

/// A run that goes on keeps the checkpoints that it did: `checkpoint.keep` and `checkpoint.keep_best` are those of the
/// one that it goes on from, unless the keys were given.
void keep_as_saved(Config& config, const std::map<std::string, std::string>& saved);

/// Attributes of a run that its checkpoint holds: every key of the configuration, and what tells its data from others.
/// With the step that is all of the state of schedule, data order and random numbers, which are functions of seed and
/// step.
std::map<std::string, std::string> run_attributes(const Config& config, const DataFacts& data);

/// Compares a checkpoint's attributes with those of the run that wants to go on: the differences that change the
/// training from here on, in words ("train.lr 0.001 -> 0.0005"). What cannot change within a run (model, batch, seed,
/// data ...) is an Error(config) with both values; what changes no result (ranks, sharding, folders ...) is not named.
std::vector<std::string> compare_runs(const std::map<std::string, std::string>& saved,
                                      const std::map<std::string, std::string>& now, const std::string& checkpoint);

/// Rule for a key of the configuration, or another attribute, that differs: docs/checkpoints.md has the same table.
OnResume on_resume(std::string_view key);

}  // namespace zs
