#include "model/train/config/expand_path.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "runtime/base/check.h"

namespace zs {
namespace {

Error no_such(const std::string& what, const std::string& todo) { return {ExitCode::config, what, "", todo}; }

std::string home_of(const std::string& user) {
  const char* const home = user.empty() ? std::getenv("HOME") : nullptr;
  if (home != nullptr && *home != '\0') return home;
  const passwd* const entry = user.empty() ? ::getpwuid(::geteuid()) : ::getpwnam(user.c_str());
  if (entry != nullptr && entry->pw_dir != nullptr && *entry->pw_dir != '\0') return entry->pw_dir;
  throw no_such(fmt::format("~{} has no home folder", user),
                fmt::format("write the folder out, or ./~{} for a file of that name", user));
}

bool is_of_name(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// The variable that a part of a path begins with, and its bytes there; no name where it begins with none.
struct Variable {
  std::string name;
  std::size_t bytes = 0;
};
Variable variable_of(std::string_view part) {
  if (!part.starts_with('$')) return {};
  const bool is_braced = part.substr(1).starts_with('{');
  const std::size_t begin = is_braced ? 2 : 1;
  std::size_t end = begin;
  while (end < part.size() && is_of_name(part[end])) ++end;
  const bool is_closed = !is_braced || part.substr(end).starts_with('}');
  if (end == begin || !is_closed || (part[begin] >= '0' && part[begin] <= '9')) return {};
  return {std::string(part.substr(begin, end - begin)), end + (is_braced ? 1 : 0)};
}

/// `before`: the path up to this part.
std::string expand_part(const std::string& before, std::string_view part) {
  const Variable variable = variable_of(part);
  if (variable.name.empty()) return std::string(part);
  const char* const value = std::getenv(variable.name.c_str());
  std::error_code failure;
  if (value == nullptr && std::filesystem::exists(before + std::string(part), failure)) return std::string(part);
  if (value == nullptr || *value == '\0')
    throw no_such(fmt::format("the variable {} is not set", variable.name), "set it, or write the folder out");
  return value + std::string(part.substr(variable.bytes));
}

}  // namespace

std::string expand_path(const std::string& path) {
  std::string expanded;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    // An absolute value in the middle of a path would leave two slashes there, which is the same path.
    if (begin > 0) expanded += '/';
    expanded += begin == 0 && part.starts_with('~') ? home_of(part.substr(1)) : expand_part(expanded, part);
    begin = end + 1;
  }
  return expanded;
}

}  // namespace zs
