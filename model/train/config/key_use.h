#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zs {

/// The keys of a configuration that a command reads: --set of others has no effect on it.
struct KeyUse {
  std::string_view command;            ///< "evaluate"
  std::vector<std::string_view> read;  ///< names, and tables by their name and a dot; "" is every key; none: it has no
                                       ///< configuration
  std::vector<std::string_view> unread = {};  ///< exceptions from `read`, in the same way

  bool reads(std::string_view key) const;
};

/// Keys of `evaluate`, `sample`, and of `export` by the kind of its source. Commands that are not here read all keys,
/// or have no --set.
const KeyUse& key_use(std::string_view command);

/// The keys of these overrides (--set) that have no effect on the command, in one warning; empty: each has one. Unknown
/// keys are left to who reads the configuration. Of a command that has none: ConfigError where a key is unknown or its
/// value is not one, and else Error(usage).
std::string unread_keys(const KeyUse& use, const std::vector<std::string>& overrides);

}  // namespace zs
