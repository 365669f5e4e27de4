#include "model/data/data_files.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/base/check.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::string> files_below(const fs::path& folder, const std::string& suffix) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
      continue;
    }
    std::error_code unknown;  // a dangling link: not a regular file
    if (entry->is_regular_file(unknown) && entry->path().string().ends_with(suffix)) files.push_back(entry->path().string());
  }
  if (error) throw Error(ExitCode::dataset, "cannot list the folder: " + error.message(), folder.string(), "check its permissions");
  if (files.empty())
    throw Error(ExitCode::dataset, fmt::format("the folder holds no {}file", suffix.empty() ? "" : suffix + " "), folder.string(),
                "put data there or name another");
  return files;
}

std::vector<std::string> glob_matches(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
  ::globfree(&found);
  if (result == GLOB_NOSPACE) throw Error(ExitCode::out_of_memory, "too many files match", pattern, "name a folder");
  return paths;
}

std::vector<std::string> matches(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return {path};
  return path.find_first_of("*?[") == std::string::npos ? std::vector<std::string>{} : glob_matches(path);
}

std::vector<std::string> find_pattern(const std::string& pattern, const std::vector<std::string>& folders) {
  if (fs::path(pattern).is_absolute()) {
    auto paths = matches(pattern);
    if (!paths.empty()) return paths;
    throw Error(ExitCode::dataset, "data not found", pattern, "check data.train and data.validation");
  }
  std::string tried;
  for (const std::string& folder : folders) {
    auto paths = matches((fs::path(folder) / pattern).string());
    if (!paths.empty()) return paths;
    tried += (tried.empty() ? "" : ", ") + (folder.empty() ? std::string("the current folder") : folder);
  }
  throw Error(ExitCode::dataset, "data not found", pattern, "looked in " + tried);
}

}  // namespace

std::vector<std::string> find_data_files(const std::vector<std::string>& patterns, const std::vector<std::string>& folders,
                                         const std::string& suffix) {
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
