#include "model/train/run_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "model/data/output_file.h"
#include "model/train/metrics.h"
#include "runtime/base/check.h"
#include "runtime/base/whole_number.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.toml";
constexpr const char* kMetricsFile = "metrics.jsonl";
constexpr const char* kCheckpoints = "checkpoints";
constexpr std::array kRunFiles = {kConfigFile, kMetricsFile, "model.safetensors"};
const char* const kRunsFolder = "runs";

Error cannot_create(const std::string& why, const std::string& path) {
  return Error(ExitCode::cannot_create, "cannot create the run directory: " + why, path, "set run.dir to a place that can be written");
}

Error holds_a_run(const std::string& path) {
  return Error(ExitCode::cannot_create, "the run directory already holds a run", path,
               "choose another run.dir, or add --resume latest or --overwrite");
}

/// Exists as anything, a dangling link included.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

bool has_run(const fs::path& dir) { return is_there(dir / kConfigFile) || is_there(dir / kMetricsFile) || is_there(dir / kCheckpoints); }

/// The nearest folder that exists must be one that we may write to.
void check_writable(const fs::path& path) {
  std::error_code failed;
  fs::path at = fs::absolute(path, failed).lexically_normal();
  if (failed) throw cannot_create(failed.message(), path.string());  // the working directory is gone
  while (!is_there(at) && at.has_relative_path()) at = at.parent_path();
  struct stat status {};
  if (::stat(at.c_str(), &status) != 0) throw cannot_create(system_reason(errno), at.string());
  if (!S_ISDIR(status.st_mode)) throw cannot_create("not a folder", at.string());
  if (::access(at.c_str(), W_OK | X_OK) != 0) throw cannot_create(system_reason(errno), at.string());
}

/// Remembers what it makes and removes it again unless kept.
class Undo {
 public:
  ~Undo() {
    std::error_code ignored;  // nothing better can be done on the way out of a failure
    if (!kept_)
      for (auto path = made_.rbegin(); path != made_.rend(); ++path) fs::remove(*path, ignored);
  }
  void add(fs::path path) { made_.push_back(std::move(path)); }
  void keep() { kept_ = true; }

 private:
  std::vector<fs::path> made_;
  bool kept_ = false;
};

/// True when this call made the folder, false when it was there.
bool make_folder(const fs::path& path, Undo& undo) {
  if (::mkdir(path.c_str(), 0755) == 0) {
    undo.add(path);
    return true;
  }
  const int error = errno;
  if (error != EEXIST) throw cannot_create(system_reason(error), path.string());
  return false;
}

void make_folders(const fs::path& path, Undo& undo) {
  fs::path so_far;
  for (const fs::path& part : path) {
    so_far /= part;
    if (part.empty() || is_there(so_far)) continue;
    make_folder(so_far, undo);
  }
  std::error_code error;
  if (!path.empty() && !fs::is_directory(path, error)) throw cannot_create("not a folder", path.string());
}

/// One more than the largest N of the NAME-N in `runs`.
std::int64_t next_number(const fs::path& runs, const std::string& name) {
  std::int64_t last = 0;
  std::error_code error;
  for (fs::directory_iterator entry(runs, error), end; !error && entry != end; entry.increment(error)) {
    const std::string file = entry->path().filename().string();
    if (file.size() <= name.size() + 1 || file.compare(0, name.size() + 1, name + "-") != 0) continue;
    constexpr std::int64_t kLargest = 1'000'000'000;
    const auto number = whole_number<std::int64_t>(std::string_view(file).substr(name.size() + 1));
    if (number && *number > last && *number < kLargest) last = *number;
  }
  return last + 1;
}

fs::path make_numbered(const std::string& name, Undo& undo) {
  make_folders(kRunsFolder, undo);
  constexpr int kMostTries = 10000;
  std::int64_t number = next_number(kRunsFolder, name);
  for (int i = 0; i < kMostTries; ++i, ++number) {
    fs::path path = fs::path(kRunsFolder) / fmt::format("{}-{}", name, number);
    if (make_folder(path, undo)) return path;
  }
  throw cannot_create("no free number", (fs::path(kRunsFolder) / name).string());
}

/// Creating metrics.jsonl exclusively decides between two starts in one named directory.
void claim(const fs::path& dir, Undo& undo) {
  const fs::path path = dir / kMetricsFile;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const int error = errno;
  if (descriptor < 0) throw error == EEXIST ? holds_a_run(dir.string()) : cannot_create(system_reason(error), dir.string());
  undo.add(path);
  if (::close(descriptor) != 0) throw cannot_create(system_reason(errno), dir.string());
}

/// Under another name first: what a removal that is killed leaves is no run's.
void remove_old_checkpoints(const fs::path& dir) {
  const fs::path removing = dir / (std::string(kCheckpoints) + ".del");
  std::error_code error;
  fs::remove_all(removing, error);
  if (!error && is_there(dir / kCheckpoints)) fs::rename(dir / kCheckpoints, removing, error);
  if (!error) fs::remove_all(removing, error);
  if (error) throw cannot_create(error.message(), (dir / kCheckpoints).string());
}

void remove_old_run(const fs::path& dir) {
  remove_old_checkpoints(dir);
  for (const char* file : kRunFiles) {
    std::error_code error;
    fs::remove(dir / file, error);
    if (error) throw cannot_create(error.message(), (dir / file).string());
  }
}

}  // namespace

void check_run_dir(const RunDirRequest& request) {
  if (request.dir.empty()) return check_writable(fs::path(kRunsFolder));
  check_writable(request.dir);
  if (!request.overwrite && has_run(request.dir)) throw holds_a_run(request.dir);
  if (is_in_use(request.dir + "/" + kMetricsFile))
    throw Error(ExitCode::cannot_create, "another run is writing here", request.dir, "wait for it, or set another run.dir");
}

std::string create_run_dir(const RunDirRequest& request, const std::string& config_toml) {
  check_run_dir(request);
  Undo undo;
  fs::path dir = request.dir;
  if (request.dir.empty()) {
    dir = make_numbered(request.name, undo);
  } else {
    make_folders(dir, undo);
    if (request.overwrite) remove_old_run(dir);
  }
  claim(dir, undo);
  write_file_atomically((dir / kConfigFile).string(), config_toml);
  undo.keep();
  return dir.string();
}

std::string latest_run_dir(const std::string& name, const std::string& within) {
  for (std::int64_t number = next_number(kRunsFolder, name) - 1; number > 0; --number) {
    const fs::path dir = fs::path(kRunsFolder) / fmt::format("{}-{}", name, number);
    if (is_there(dir / within)) return dir.string();
  }
  return {};
}

void reopen_run_dir(const std::string& dir, const std::string& config_toml) {
  check_writable(dir);
  write_file_atomically((fs::path(dir) / kConfigFile).string(), config_toml);
}

}  // namespace zs
