#include "model/data/data_files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/base/check.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

Error cannot_list(const std::string& folder, int error) {
  const bool has_slash = folder.size() > 1 && folder.ends_with('/');
  return {ExitCode::dataset, "cannot list the folder: " + system_reason(error),
          folder.empty() ? "." : folder.substr(0, folder.size() - (has_slash ? 1 : 0)), "check its permissions"};
}

/// Everything below one folder.
class FolderListing {
 public:
  FolderListing(const std::string& root, std::string suffix) : suffix_(std::move(suffix)) {
    std::error_code error;
    root_ = fs::canonical(root, error);
    if (error) throw cannot_list(root, error.value());
    // Links wait for the rest, so that a folder has the path that it really has, where it has one below the root.
    std::set<std::string> folders{root};
    while (!folders.empty() || !links_.empty()) {
      std::set<std::string>& next = folders.empty() ? links_ : folders;
      list(next.extract(next.begin()).value(), folders);
    }
  }
  std::vector<std::string> files;

 private:
  void list(const std::string& folder, std::set<std::string>& folders) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) throw cannot_list(folder, errno);
    if (!seen_.insert({status.st_dev, status.st_ino}).second) return;
    std::error_code error;
    fs::directory_iterator entry(folder, error), end;
    for (; !error && entry != end; entry.increment(error))
      if (!is_hidden(entry->path())) add(entry->path().string(), folder, folders);
    if (error) throw cannot_list(folder, error.value());
  }

  void add(const std::string& path, const std::string& folder, std::set<std::string>& folders) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      if (errno == EACCES) throw cannot_list(folder, errno);
      return;  // a dangling link, one to itself, or what is gone meanwhile
    }
    if (S_ISREG(status.st_mode) && path.ends_with(suffix_)) files.push_back(path);
    if (!S_ISDIR(status.st_mode)) return;
    std::error_code error;
    if (!fs::is_symlink(path, error)) {
      folders.insert(path);
    } else if (const fs::path target = fs::canonical(path, error); !error && !holds_root(target)) {
      links_.insert(path);
    }
  }

  bool holds_root(const fs::path& target) const {
    return std::mismatch(target.begin(), target.end(), root_.begin(), root_.end()).first == target.end();
  }

  fs::path root_;
  std::string suffix_;
  std::set<std::string> links_;
  std::set<std::pair<dev_t, ino_t>> seen_;
};

std::vector<std::string> files_below(const std::string& folder, const std::string& suffix) {
  FolderListing listing(folder, suffix);
  if (listing.files.empty())
    throw Error(ExitCode::dataset, fmt::format("the folder holds no {}file", suffix.empty() ? "" : suffix + " "),
                folder, "put data there or name another");
  return std::move(listing.files);
}

/// Search for what one pattern stands for, part by part.
class PatternSearch {
 public:
  /// Looks for paths that begin with `base`, which is empty or ends in a slash.
  PatternSearch(const std::string& base, std::string_view pattern) { search(base, pattern); }

  const std::vector<std::string>& paths() const { return paths_; }
  /// Error by which a folder could not be searched, which may hold more.
  const std::optional<Error>& obstacle() const { return obstacle_; }

 private:
  static bool has_magic(std::string_view text) { return text.find_first_of("*?[") != text.npos; }

  bool exists(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) return true;
    if (errno == EACCES && !obstacle_) obstacle_ = cannot_list(closed_folder(path), EACCES);
    return false;
  }

  /// The first folder on the way to `path` that may not be entered.
  static std::string closed_folder(const std::string& path) {
    for (std::size_t slash = path.find('/', 1); slash != path.npos; slash = path.find('/', slash + 1)) {
      std::string folder = path.substr(0, slash);
      if (::faccessat(AT_FDCWD, folder.c_str(), X_OK, AT_EACCESS) != 0) return folder;
    }
    return fs::path(path).parent_path().string();
  }

  void search(const std::string& base, std::string_view pattern) {
    const std::string literal = base + std::string(pattern);
    if (exists(literal)) return paths_.push_back(literal);
    if (!has_magic(pattern)) return;
    const std::size_t slash = pattern.find('/'), found = paths_.size();
    const std::string_view part = pattern.substr(0, slash),
                           rest = pattern.substr(std::min(part.size() + 1, pattern.size()));
    const bool is_last = slash == pattern.npos;
    if (!is_last && (part.empty() || exists(base + std::string(part)))) search(base + std::string(part) + "/", rest);
    if (paths_.size() > found || !has_magic(part)) return;
    for (const std::string& match : glob_matches(base, part))
      is_last ? paths_.push_back(match) : search(match + "/", rest);
  }

  /// The entries of the folder `base` that match.
  std::vector<std::string> glob_matches(const std::string& base, std::string_view part) {
    std::string pattern;
    for (const char c : base)
      pattern +=
          std::string_view("*?[]\\").find(c) == std::string_view::npos ? std::string(1, c) : std::string{'\\', c};
    glob_t found{};
    const int result = ::glob((pattern + std::string(part)).c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
    const int error = errno;
    std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
    ::globfree(&found);
    if (result == GLOB_NOSPACE)
      throw Error(ExitCode::out_of_memory, "too many files match", base + std::string(part), "name a folder");
    if (result == GLOB_ABORTED && error == EACCES && !obstacle_) obstacle_ = cannot_list(base, error);
    return paths;
  }

  std::vector<std::string> paths_;
  std::optional<Error> obstacle_;
};

std::vector<std::string> find_pattern(const std::string& pattern, const std::vector<std::string>& folders) {
  std::optional<Error> obstacle;
  std::string tried;
  const bool is_absolute = fs::path(pattern).is_absolute();
  for (const std::string& folder : is_absolute ? std::vector<std::string>{""} : folders) {
    const PatternSearch search(folder.empty() || folder.ends_with('/') ? folder : folder + "/", pattern);
    if (!search.paths().empty() && search.obstacle()) throw *search.obstacle();
    if (!search.paths().empty()) return search.paths();
    if (!obstacle) obstacle = search.obstacle();
    tried += (tried.empty() ? "" : ", ") + (folder.empty() ? std::string("the current folder") : folder);
  }
  if (obstacle) throw *obstacle;
  throw Error(ExitCode::dataset, "data not found", pattern,
              is_absolute ? "check data.train and data.validation" : "looked in " + tried);
}

}  // namespace

std::vector<std::string> find_data_files(const std::vector<std::string>& patterns,
                                         const std::vector<std::string>& folders, const std::string& suffix) {
  std::set<std::string> files;
  for (const std::string& pattern : patterns) {
    for (const std::string& path : find_pattern(pattern, folders)) {
      std::error_code error;
      if (fs::is_directory(path, error)) {
        for (auto& file : files_below(path, suffix)) files.insert(fs::path(file).lexically_normal().string());
      } else {
        files.insert(fs::path(path).lexically_normal().string());
      }
    }
  }
  return {files.begin(), files.end()};
}

}  // namespace zs
