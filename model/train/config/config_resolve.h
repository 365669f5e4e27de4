#pragma once

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/train/config/config.h"

namespace zs {

/// A Config while it is read: which keys were given and where, and every problem so far. Used by one thread, briefly.
struct ConfigDraft {
  Config config;
  std::string source;                        ///< names the file in messages
  std::map<std::string, std::string> given;  ///< key -> "file:line" or "--set"
  std::map<std::string, std::string> site;   ///< keys that only a default for all runs gives
  std::set<std::string> bad;                 ///< keys with a problem: no further check looks at them
  std::vector<Error> problems;
  ConfigFor use = ConfigFor::training;

  bool is_given(const std::string& key) const { return given.count(key) != 0; }
  /// Place where `key` was given, or the source as a whole.
  std::string where(const std::string& key) const;
  void report(const std::string& key, std::string what, std::string what_to_do);
};

/// The text of a configuration's file; ConfigError where it is none, or too large.
std::string read_config_file(const std::string& path);
/// The keys of a file's text, unresolved; ConfigError where it is no TOML.
ConfigDraft parse_keys(std::string_view text, const std::string& source);

/// True if none of the keys has a problem.
bool are_good(const ConfigDraft& draft, std::initializer_list<const char*> keys);

/// Fills in what follows from other keys (preset, vocabulary, name ...), then checks the keys against each other.
void resolve_config(ConfigDraft& draft);

}  // namespace zs
