#include "model/train/run_dir/run_contents.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
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
auto listed(const List& list) {
  try {
    return list();
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
std::vector<std::string> own_checkpoints(const Folder& root, const RunMark& mark) {
  std::vector<std::string> own;
  for (const std::string& name : listed([&] { return names_in(root); })) {
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

std::vector<std::string> list_names(const fs::path& folder) {
  return listed([&] { return names_in(folder.string()); });
}

bool has_checkpoint(const fs::path& dir) {
  return !listed([&] { return list_checkpoints((dir / kCheckpoints).string()); }).empty();
}

void check_checkpoints(const fs::path& dir) {
  const fs::path root = dir / kCheckpoints;
  std::error_code failed;
  if (!is_there(root) || fs::is_directory(fs::symlink_status(root, failed))) return;
  throw Error(ExitCode::cannot_create, "a run's checkpoints are in a folder, and this is none: no link is followed",
              root.string(), "put the folder itself there, or set another run.dir");
}

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
  check_checkpoints(dir);
  const Folder root = mark.checkpoints();
  for (const std::int64_t step : listed([&] { return list_checkpoints(root); }))
    if (const auto problem = why_kept(root, step, mark.owner()))
      throw Error(ExitCode::cannot_create, problem->what_happened(), problem->where(), problem->what_to_do());
  for (const std::string& name : own_checkpoints(root, mark)) {
    if (const std::string foreign = foreign_path(root, name); !foreign.empty()) throw in_the_way(foreign);
    if (is_of_another_run(root, name, mark.owner())) throw in_the_way(root.path_of(name));
  }
}

void remove_leftovers(const Folder& dir) {
  for (const std::string& name : listed([&] { return names_in(dir); })) {
    const auto of = leftover_of(name);
    if (of && (*of == kConfigFile || *of == kWeightsFile || *of == kReportFile) && dir.type_of(name) == S_IFREG)
      static_cast<void>(dir.remove_file(name));  // a leftover that stays is in nobody's way
  }
}

void remove_old_run(const RunMark& mark) {
  const Folder root = mark.checkpoints();
  std::vector<std::string> folders = own_checkpoints(root, mark);
  std::sort(folders.begin(), folders.end());
  const FolderIo io(nullptr);
  for (const std::string& name : folders) {
    if (const auto step = step_of(name)) {
      remove_checkpoint(root, *step, io);
    } else {
      io.remove_folder(root, name);
    }
  }
  if (root.is_open() && listed([&] { return names_in(root); }).empty())
    static_cast<void>(mark.folder().remove_folder(kCheckpoints));
  remove_leftovers(mark.folder());
  for (const char* file : kFiles) {
    const int error = mark.folder().remove_file(file);
    if (error != 0 && error != ENOENT) throw cannot_create(system_reason(error), mark.folder().path_of(file));
  }
}

}  // namespace zs::run_contents
