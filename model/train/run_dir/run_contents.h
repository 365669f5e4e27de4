#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/train/run_dir/run_mark.h"
#include "runtime/base/check.h"

/// Contents of a run's directory, and whose they are: only what the run's mark lists is its own.
namespace zs::run_contents {

inline constexpr const char* kConfigFile = "config.toml";
inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kCheckpoints = "checkpoints";
inline constexpr const char* kFlight = "flight";

Error cannot_create(const std::string& why, const std::string& path);
Error in_the_way(const std::filesystem::path& path);

/// Exists as anything, a dangling link included.
bool is_there(const std::filesystem::path& path);
/// The names in a folder. Error(cannot_create) where it cannot be listed: that is no place to write to.
std::vector<std::string> list_names(const std::filesystem::path& folder);
bool has_checkpoint(const std::filesystem::path& dir);
/// Error(cannot_create) where something that is no folder, as a link, has the name of the run's checkpoints.
void check_checkpoints(const std::filesystem::path& dir);

/// Checks a folder that is no run's: nothing may be where a run writes. An empty folder for checkpoints is no loss.
void check_free(const std::filesystem::path& dir);
/// Whatever a run has been writing must still be its own before any of it is removed.
void check_own(const std::filesystem::path& dir, const RunMark& mark);

/// Removes "FILE.PID-N.tmp", as OutputFile names what it is writing: left by processes that were killed.
void remove_leftovers(const Folder& dir);
/// Removes all that the run has written but its mark.
void remove_old_run(const RunMark& mark);

}  // namespace zs::run_contents
