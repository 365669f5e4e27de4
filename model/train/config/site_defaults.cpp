#include "model/train/config/site_defaults.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "model/train/config/config_resolve.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/expand_path.h"

namespace zs {
namespace {

constexpr std::array kMachineKeys = {"checkpoint.every_minutes", "checkpoint.on_full",    "comm.interface",
                                     "comm.timeout_s",           "cuda.libraries",        "cuda.register",
                                     "cuda.share_gpu",           "cuda.transport",        "device",
                                     "offload.device_mib",       "offload.host_mib",      "train.time_limit",
                                     "watchdog.checkpoint_s",    "watchdog.first_step_s", "watchdog.hosts",
                                     "watchdog.init_s",          "watchdog.step_s"};

/// A folder that is not written from the root would be another one for each run.
bool is_from_root(std::string_view folders) {
  for (std::size_t at = 0; at < folders.size(); at = std::min(folders.find(':', at), folders.size()) + 1)
    if (folders[at] != '/') return false;
  return true;
}

/// Nothing where the user has no home.
std::optional<std::string> file_of_user() {
  const char* const folder = std::getenv("XDG_CONFIG_HOME");
  if (folder != nullptr && *folder == '/') return folder + std::string("/zshard.toml");
  try {
    return expand_path("~/.config/zshard.toml");
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<SiteDefault> read_site_defaults(const std::string& path) {
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) return {};
  return parse_site_defaults(read_config_file(path), path);
}

}  // namespace

std::vector<SiteDefault> parse_site_defaults(std::string_view text, const std::string& source) {
  ConfigDraft draft = parse_keys(text, source);
  std::vector<SiteDefault> defaults;
  for (const auto& [key, where] : draft.given) {
    if (draft.bad.contains(key)) continue;
    if (std::find(kMachineKeys.begin(), kMachineKeys.end(), key) == kMachineKeys.end())
      draft.report(key, fmt::format("{} is no key of a machine", key),
                   "give it in the run's own file; docs/configuration.md lists the keys of a machine");
    else if (key == "cuda.libraries" && !is_from_root(draft.config.cuda.libraries))
      draft.report(key, "cuda.libraries has a folder that does not begin with /", "write it from the root");
    else
      defaults.push_back({key, toml_value(find_config_key(key)->slot(draft.config)), where});
  }
  if (!draft.problems.empty()) throw ConfigError(std::move(draft.problems));
  return defaults;
}

std::vector<SiteDefault> site_defaults() {
  if (const char* const only = std::getenv("ZSHARD_SITE_CONFIG")) {
    if (*only == '\0') return {};
    std::error_code unknown;
    if (!std::filesystem::exists(only, unknown))
      throw ConfigError({Error(ExitCode::config, "the file that ZSHARD_SITE_CONFIG names is not there", only,
                               "name another one, or unset the variable")});
    return parse_site_defaults(read_config_file(only), only);
  }
  std::vector<SiteDefault> defaults = read_site_defaults("/etc/zshard.toml");
  if (const auto path = file_of_user())
    for (SiteDefault& one : read_site_defaults(*path)) defaults.push_back(std::move(one));
  return defaults;
}

std::string site_note(const Config& config) {
  Config copy = config;
  std::vector<std::string> said;
  for (const auto& [key, where] : config.given.site)
    said.push_back(fmt::format("{} {} = {}", where, key, toml_value(find_config_key(key)->slot(copy))));
  return said.empty() ? "" : fmt::format("defaults of {}", fmt::join(said, ", "));
}

}  // namespace zs
