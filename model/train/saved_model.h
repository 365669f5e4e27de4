#pragma once

#include <string>
#include <vector>

#include "model/train/config.h"

namespace zs {

/// A model that is there to be evaluated, or sampled from.
struct SavedModel {
  std::string checkpoint;  ///< its folder
  std::string run_dir;     ///< of the run that has saved it; empty: it lies alone
};

/// `path`: a checkpoint's folder, or a run's, which stands for its newest checkpoint. Error(checkpoint) where there is neither. Changes
/// nothing.
SavedModel find_saved_model(const std::string& path);

/// What the run that saved it was, as far as the model, its numbers and its data go, with `overrides` (--set) on top: device, ranks,
/// watchdog and the run's folder are the defaults. The data is that of the run's config.toml, where there is one: its names are absolute.
/// Throws ConfigError, and Error(checkpoint) where the checkpoint does not say all of it.
Config config_of(const SavedModel& model, const std::vector<std::string>& overrides);

}  // namespace zs
