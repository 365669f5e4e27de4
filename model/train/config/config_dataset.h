#pragma once

#include "model/data/dataset.h"
#include "model/train/config/config.h"

namespace zs {

/// data.special_tokens.
SpecialTokens special_tokens(const Config& config);

/// The dataset that a resolved configuration describes. Relative paths are looked up in the current folder, beside the
/// configuration file, then in `build_folder` (the program's).
DatasetOptions dataset_options(const Config& config, const std::string& config_path, const std::string& build_folder);

/// Opens the tokenizer of a configuration, if it has one, and the template of its chats. Throws Error(model).
void open_text(const Config& config, DatasetOptions& options);

/// Files of run.evaluate, each in the first folder that has it of those that data is looked up in; unchanged where none
/// has it.
std::vector<std::string> task_files(const Config& config, const std::string& config_path,
                                    const std::string& build_folder);

/// The configuration with relative names made absolute: the data's and the tasks' as they were found by the same rules,
/// the tokenizer, exports and folders of disks as they are seen from the current folder. So it means the same files and
/// folders wherever it is given again.
Config with_absolute_paths(Config config, const std::string& config_path, const std::string& build_folder);

}  // namespace zs
