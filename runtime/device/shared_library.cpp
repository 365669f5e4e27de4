#include "runtime/device/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include "runtime/base/check.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ':');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The folders below `folder`, or none where it cannot be read.
std::vector<fs::path> folders_below(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code unreadable;
    if (at->is_directory(unreadable)) found.push_back(at->path());
  }
  return found;
}

/// Adds folders as pip lays NVIDIA's packages out: nvidia/cu13/lib, nvidia/nccl/lib and so on.
void add_python_packages(const fs::path& prefix, std::vector<std::string>& folders) {
  for (const fs::path& python : folders_below(prefix / "lib")) {
    if (!python.filename().string().starts_with("python3")) continue;
    for (const fs::path& package : folders_below(python / "site-packages" / "nvidia"))
      folders.push_back((package / "lib").string());
  }
}

}  // namespace

SharedLibrary::SharedLibrary(std::initializer_list<const char*> names, std::string what, const char* todo,
                             const std::string& first, const std::vector<std::string>& more)
    : what_(std::move(what)) {
  std::string reason, reason_of_a_file;
  const auto opens = [&](const std::string& name, bool is_in_folder) {
    std::error_code failed;
    if (is_in_folder && !fs::exists(name, failed)) return false;
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      name_ = name;
      return true;
    }
    (is_in_folder ? reason_of_a_file : reason) = dlerror();
    return false;
  };
  const auto opens_in = [&](const std::vector<std::string>& folders) {
    for (const std::string& folder : folders) {
      for (const char* name : names) {
        if (opens((fs::path(folder) / name).string(), true)) return true;
      }
    }
    return false;
  };
  if (opens_in(parts_of(first))) return;
  for (const char* name : names) {
    if (opens(name, false)) return;
  }
  if (opens_in(more)) return;
  throw Error(ExitCode::config,
              fmt::format("no {} here ({})", what_, reason_of_a_file.empty() ? reason : reason_of_a_file), "", todo);
}

void* SharedLibrary::address_of(const char* symbol) const { return dlsym(handle_, symbol); }

void SharedLibrary::throw_too_old(const char* symbol) const {
  throw Error(ExitCode::config, fmt::format("the {} is too old: it has no {}", what_, symbol), name_,
              "install a newer one");
}

std::vector<std::string> cuda_folders() {
  std::vector<std::string> folders;
  for (const std::string& home : {variable("CUDA_HOME"), variable("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    if (home.empty()) continue;
    for (const char* below : {"lib64", "lib", "targets/x86_64-linux/lib"})
      folders.push_back((fs::path(home) / below).string());
  }
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string prefix = variable(name); !prefix.empty()) add_python_packages(prefix, folders);
  }
  for (const std::string& folder : parts_of(variable("PATH"))) {
    std::error_code failed;
    if (fs::exists(fs::path(folder) / "python3", failed)) add_python_packages(fs::path(folder).parent_path(), folders);
  }
  std::erase_if(folders, [](const std::string& folder) {
    std::error_code failed;
    return !fs::is_directory(folder, failed);
  });
  return folders;
}

}  // namespace zs
