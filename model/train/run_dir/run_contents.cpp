#include "model/train/run_dir/run_contents.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <system_error>

#include "model/data/output_file.h"
#include "model/train/run_dir/event_file.h"
#include "model/train/run_dir/metrics.h"
#include "model/train/run_dir/run_dir.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs::run_contents {
namespace {

namespace fs = std::filesystem;

/// Every file that a run replaces or removes, and nobody else's.
constexpr std::array kFiles = {kConfigFile, kMetricsFile, kWeightsFile, kReportFile, kEventsFile};

/// A folder that cannot be listed is no place to write to.
template <class List>
auto listed(const List& list, const fs::path& folder) {
  try {
    return list(folder.string());
  } catch (const Error& error) {
    throw Error(ExitCode::cannot_create, error.what_happened(), error.where(), error.what_to_do());
  }
}

/// The step of "step-12", "step-12.tmp", "step-12.del" or "step-12.damaged-2".
std::optional<std::int64_t> step_of_any(std::string_view name) {
  const std::string_view step = name.substr(0, name.find('.')), suffix = name.substr(step.size());
  const bool is_known =
      suffix.empty() || suffix == kWritingSuffix || suffix == kRemovingSuffix || suffix.starts_with(kDamagedSuffix);
  return is_known ? step_of(step) : std::nullopt;
}

/// The folders of a run's checkpoints, half and damaged ones too, as far as the run has written them.
std::vector<std::string> own_checkpoints(const fs::path& dir, const RunMark& mark) {
  std::vector<std::string> own;
  for (const std::string& name : list_names(dir / kCheckpoints)) {
    const auto step = step_of_any(name);
    if (step && mark.has(checkpoint_name(*step))) own.push_back(name);
  }
  return own;
}

}  // namespace

Error cannot_create(const std::string& why, const std::string& path) {
  return Error(ExitCode::cannot_create, "cannot create the run directory: " + why, path,
               "set run.dir to a place that can be written");
}

Error in_the_way(const fs::path& path) {
  return Error(ExitCode::cannot_create, "this is in the way, and it is not what a run of zshard wrote", path.string(),
               "set another run.dir, or move it elsewhere; --overwrite removes only what a run has written");
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

std::vector<std::string> list_names(const fs::path& folder) { return listed(names_in, folder); }

bool has_checkpoint(const fs::path& dir) { return !listed(list_checkpoints, dir / kCheckpoints).empty(); }

void check_free(const fs::path& dir) {
  if (is_there(dir / RunMark::kFile)) throw in_the_way(dir / RunMark::kFile);
  for (const char* file : kFiles)
    if (is_there(dir / file)) throw in_the_way(dir / file);
  std::error_code failed;
  for (const char* folder : {kCheckpoints, kFlight}) {
    if (!is_there(dir / folder)) continue;
    if (!fs::is_directory(fs::symlink_status(dir / folder, failed))) throw in_the_way(dir / folder);
    const auto names = list_names(dir / folder);
    if (!names.empty()) throw in_the_way(dir / folder / *std::min_element(names.begin(), names.end()));
  }
}

void check_own(const fs::path& dir, const RunMark& mark) {
  for (const char* file : kFiles)
    if (is_there(dir / file) && !mark.is_own_file(file)) throw in_the_way(dir / file);
  if (is_there(dir / kMetricsFile) && !begins_as_metrics((dir / kMetricsFile).string()))
    throw in_the_way(dir / kMetricsFile);
  if (is_there(dir / kEventsFile) && !begins_as_events((dir / kEventsFile).string()))
    throw in_the_way(dir / kEventsFile);
  const std::string root = (dir / kCheckpoints).string();
  const auto is_own = [&](std::int64_t step) { return mark.has(checkpoint_name(step)); };
  for (const std::int64_t step : listed(list_checkpoints, dir / kCheckpoints))
    if (const auto problem = why_kept(root, step, is_own))
      throw Error(ExitCode::cannot_create, problem->what_happened(), problem->where(), problem->what_to_do());
  for (const std::string& name : own_checkpoints(dir, mark))
    if (const std::string foreign = foreign_path(root + "/" + name); !foreign.empty()) throw in_the_way(foreign);
}

void remove_leftovers(const fs::path& dir) {
  for (const std::string& name : list_names(dir)) {
    const auto of = leftover_of(name);
    std::error_code failed;
    if (of && (*of == kConfigFile || *of == kWeightsFile || *of == kReportFile) &&
        fs::is_regular_file(fs::symlink_status(dir / name, failed)))
      fs::remove(dir / name, failed);  // a file that stays is in nobody's way
  }
}

void remove_old_run(const fs::path& dir, const RunMark& mark) {
  std::vector<std::string> folders = own_checkpoints(dir, mark);
  std::sort(folders.begin(), folders.end());
  const FolderIo io(nullptr);
  for (const std::string& name : folders) {
    const std::string folder = (dir / kCheckpoints / name).string();
    // Renamed first: what a removal that is killed leaves is no checkpoint.
    const bool is_whole = step_of(name).has_value();
    const std::string removing = is_whole ? folder + kRemovingSuffix : folder;
    if (is_whole) {
      io.remove_folder(removing);
      io.rename(folder, removing);
    }
    io.remove_folder(removing);
  }
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(dir / kCheckpoints, error)) && list_names(dir / kCheckpoints).empty())
    fs::remove(dir / kCheckpoints, error);
  remove_leftovers(dir);
  for (const char* file : kFiles) {
    fs::remove(dir / file, error);
    if (error) throw cannot_create(error.message(), (dir / file).string());
  }
}

}  // namespace zs::run_contents
