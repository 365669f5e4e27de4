#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/train/config/config.h"

namespace zs {

/// Defaults of a machine and of a user for all runs: /etc/zshard.toml, then zshard.toml in $XDG_CONFIG_HOME (if that
/// is not set ~/.config), which goes before it; $ZSHARD_SITE_CONFIG names one file instead, and is empty for none. They
/// hold only keys of how a machine carries a run out, which change no result. Throws ConfigError.
std::vector<SiteDefault> site_defaults();
/// Defaults in one file's text; `source` names it.
std::vector<SiteDefault> parse_site_defaults(std::string_view text, const std::string& source);
/// "defaults of /etc/zshard.toml:2 comm.timeout_s = 600.0, ..."; empty where the run's own file says all.
std::string site_note(const Config& config);

}  // namespace zs
