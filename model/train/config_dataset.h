#pragma once

#include "model/data/dataset.h"
#include "model/train/config.h"

namespace zs {

/// The dataset that a resolved configuration describes. Relative paths are looked up in the current folder, beside the
/// configuration file, then in `build_folder` (the program's).
DatasetOptions dataset_options(const Config& config, const std::string& config_path, const std::string& build_folder);

}  // namespace zs
