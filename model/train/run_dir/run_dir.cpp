#include "model/train/run_dir/run_dir.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "model/data/output_file.h"
#include "model/train/run_dir/metrics.h"
#include "model/train/run_dir/run_contents.h"
#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/parse_integer.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

namespace fs = std::filesystem;
using namespace run_contents;  // NOLINT(google-build-using-namespace): the other half of this file

const char* const kRunsFolder = "runs";

Error used_by_another(const std::string& dir) {
  return Error(ExitCode::cannot_create, "another run is writing here", dir, "wait for it, or set another run.dir");
}

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
  const int error = zs::make_folder(path.string());
  if (error == 0) undo.add(path);
  if (error != 0 && error != EEXIST) throw cannot_create(system_reason(error), path.string());
  return error == 0;
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
  for (const std::string& file : list_names(runs)) {
    if (file.size() <= name.size() + 1 || file.compare(0, name.size() + 1, name + "-") != 0) continue;
    constexpr std::int64_t kLargest = 1'000'000'000;
    const auto number = parse_integer<std::int64_t>(std::string_view(file).substr(name.size() + 1));
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

/// Advises only what will be accepted.
Error holds_a_run(const fs::path& dir) {
  std::vector<std::string> ways;
  if (has_checkpoint(dir)) {
    ways.push_back("--resume latest");
  } else if (!is_there(dir / kWeightsFile)) {
    ways.push_back("--resume auto");
  }
  try {
    if (const auto mark = RunMark::find(dir.string())) check_own(dir, *mark);
    ways.push_back("--overwrite");
  } catch (const Error&) {  // --overwrite would not replace it either
  }
  return Error(ExitCode::cannot_create, "the run directory already holds a run", dir.string(),
               fmt::format("choose another run.dir{}{}", ways.empty() ? "" : ", or add ", fmt::join(ways, " or ")));
}

/// The mark's file, held while a run is made or replaced: it decides between several starts in one named directory.
class Claim {
 public:
  explicit Claim(const fs::path& dir) : dir_(dir), path_(dir / RunMark::kFile) {}

  void create(Undo& undo) {
    open(O_CREAT | O_EXCL);
    undo.add(path_);
  }
  void take_over() { open(0); }
  /// The mark of a run that has written nothing yet.
  void begin_mark() const {
    int error = file_.truncate(0);
    if (error == 0) error = file_.write_at(0, RunMark::fresh());
    if (error != 0) throw cannot_create(system_reason(error), path_.string());
  }

 private:
  void open(int flags) {
    file_ = File::open(path_.string(), O_RDWR | O_NOFOLLOW | flags);
    if (!file_.is_open())
      throw file_.error() == EEXIST ? holds_a_run(dir_) : cannot_create(system_reason(file_.error()), path_.string());
    if (file_.lock() == File::Lock::others) throw used_by_another(dir_.string());
  }

  fs::path dir_, path_;
  File file_;
};

/// A run of which nothing would be lost, or that may be.
bool may_replace(const RunDirRequest& request) {
  return request.overwrite ||
         (request.restart && !has_checkpoint(request.dir) && !is_there(fs::path(request.dir) / kWeightsFile));
}

void make_metrics(const fs::path& dir, Undo& undo) {
  const fs::path path = dir / kMetricsFile;
  File file = File::open(path.string(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!file.is_open())
    throw file.error() == EEXIST ? in_the_way(path) : cannot_create(system_reason(file.error()), dir.string());
  undo.add(path);
  if (const int error = file.close(); error != 0) throw cannot_create(system_reason(error), dir.string());
}

void write_config(const fs::path& dir, RunMark& mark, const std::string& config_toml) {
  mark.begin(kConfigFile);
  write_file_atomically((dir / kConfigFile).string(), config_toml);
  mark.wrote(kConfigFile);
}

/// Claims a folder that is there: the mark, held.
void claim(const RunDirRequest& request, const fs::path& dir, Claim& held, Undo& undo) {
  if (!RunMark::find(dir.string())) {
    check_free(dir);
    held.create(undo);
  } else {
    if (may_replace(request)) held.take_over();
    const auto mark = RunMark::find(dir.string());  // as it is, now that nobody else is at it
    if (!mark || !may_replace(request)) throw holds_a_run(dir);
    if (is_in_use((dir / kMetricsFile).string())) throw used_by_another(dir.string());
    check_own(dir, *mark);
    remove_old_run(*mark);
  }
  held.begin_mark();
}

/// Keeps a file whose bytes are not the run's: its new path.
std::string rename_aside(const fs::path& path) {
  constexpr int kMostTries = 10000;
  for (int number = 1; number <= kMostTries; ++number) {
    const std::string kept = fmt::format("{}.kept-{}", path.string(), number);
    if (is_there(kept)) continue;
    const int error = rename_to_free(path.string(), kept);
    if (error != 0) throw file_error(ExitCode::io, "renaming", error, path.string());
    return kept;
  }
  throw in_the_way(path);
}

}  // namespace

void check_run_dir(const RunDirRequest& request) {
  if (request.dir.empty()) return check_writable(fs::path(kRunsFolder));
  check_writable(request.dir);
  std::error_code failed;
  if (fs::equivalent(request.dir, "/", failed)) throw cannot_create("it is the root of all files", request.dir);
  const auto mark = RunMark::find(request.dir);
  if (!mark) return check_free(request.dir);
  if (is_in_use(request.dir + "/" + kMetricsFile)) throw used_by_another(request.dir);
  if (!may_replace(request)) throw holds_a_run(request.dir);
  check_own(request.dir, *mark);
}

std::string create_run_dir(const RunDirRequest& request, const std::string& config_toml) {
  check_run_dir(request);
  Undo undo;
  fs::path dir = request.dir;
  if (request.dir.empty()) {
    dir = make_numbered(request.name, undo);
  } else {
    make_folders(dir, undo);
  }
  Claim held(dir);
  claim(request, dir, held, undo);
  RunMark mark = RunMark::find(dir.string()).value();
  mark.begin(kMetricsFile);
  make_metrics(dir, undo);
  undo.add(dir / kConfigFile);
  write_config(dir, mark, config_toml);
  undo.keep();
  return dir.string();
}

std::string how_to_start(const std::string& dir) {
  const auto is_accepted = [](const RunDirRequest& request) {
    try {
      check_run_dir(request);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  if (is_accepted({dir, "", false, true})) return "start with --resume auto, which goes on where there is a checkpoint";
  return is_accepted({dir, "", true, false}) ? "start the run anew with --overwrite, or set another run.dir"
                                             : "set another run.dir";
}

std::string latest_run_dir(const std::string& name, const std::function<bool(const std::string& dir)>& is_wanted) {
  for (std::int64_t number = next_number(kRunsFolder, name) - 1; number > 0; --number) {
    const std::string dir = (fs::path(kRunsFolder) / fmt::format("{}-{}", name, number)).string();
    if (is_there(dir) && is_wanted(dir)) return dir;
  }
  return {};
}

void check_reopen(const std::string& dir, const RunMark& mark) {
  check_writable(dir);
  check_checkpoints(dir);
  if (is_there(fs::path(dir) / kWeightsFile) && !mark.is_own_file(kWeightsFile))
    throw in_the_way(fs::path(dir) / kWeightsFile);
}

std::string reopen_run_dir(const std::string& dir, RunMark& mark, const std::string& config_toml) {
  const fs::path config = fs::path(dir) / kConfigFile;
  const std::string kept = is_there(config) && !mark.is_own_file(kConfigFile) ? rename_aside(config) : std::string();
  mark.give_id();
  write_config(dir, mark, config_toml);
  remove_leftovers(mark.folder());
  return kept;
}

std::string run_dir_of_config(const std::string& config_path) {
  const fs::path path = config_path, parent = path.parent_path();
  if (path.filename() != kConfigFile) return {};
  const std::string dir = parent.empty() ? "." : parent.string();
  const auto mark = RunMark::find(dir);
  return mark && mark->has(kConfigFile) ? dir : std::string();
}

}  // namespace zs
