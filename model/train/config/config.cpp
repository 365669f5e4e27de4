#include "model/train/config/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>

#include "model/train/config/config_resolve.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/toml_nesting.h"
#include "model/train/config/toml_text.h"
#include "runtime/base/parse_integer.h"
#include "runtime/base/reader_limits.h"

namespace zs {
namespace {

constexpr std::size_t kLongestString = 4096, kLongestList = 4096;

Error nested_too_deeply(const std::string& where) {
  return {ExitCode::config, fmt::format("tables or arrays are nested more than {} deep", ReaderLimits::kTomlDepth),
          where, "a key of the configuration has two levels: TABLE.KEY"};
}

std::string article(std::string noun) {
  const bool is_vowel = std::string("aeiou").find(noun.front()) != std::string::npos;
  return (is_vowel ? "an " : "a ") + std::move(noun);
}

std::string kind_of(const toml::node& node) {
  if (node.is_boolean()) return "a boolean";
  if (node.is_integer()) return "an integer";
  if (node.is_floating_point()) return "a number with a fraction";
  if (node.is_string()) return "a string";
  if (node.is_array()) return "an array";
  if (node.is_table()) return "a table";
  return "a date or time";
}

std::string expected(const ConfigKey& key) {
  const std::string allowed = key.allowed();
  if (!key.choices.empty()) return "use one of " + allowed;
  const bool is_countable = !key.type().starts_with("true") && !key.type().starts_with("seconds");
  return "give " + (is_countable ? article(key.type()) : key.type()) + (allowed.empty() ? "" : ", " + allowed);
}

/// Puts single values into a draft.
class KeyReader {
 public:
  KeyReader(ConfigDraft& draft, const ConfigKey& key, std::string where) : draft_(draft), key_(key), name_(key.name) {
    draft_.given[name_] = std::move(where);
    draft_.bad.erase(name_);
  }

  void read(const toml::node& node) {
    std::visit([&](auto* target) { read_into(node, *target); }, key_.slot(draft_.config));
  }
  void read_text(const std::string& text) {
    const ConfigSlot slot = key_.slot(draft_.config);
    if (auto* const* target = std::get_if<std::string*>(&slot)) {
      if (is_good_text(text)) **target = text;
    } else if (auto* const* duration = std::get_if<Config::Duration*>(&slot)) {
      read_duration(text, **duration);
    } else if (auto* const* count = std::get_if<Config::Count*>(&slot)) {
      read_count(text, **count);
    } else if (is_good_text(text) && is_not_empty(text)) {
      *std::get<std::vector<std::string>*>(slot) = {text};
    }
  }

 private:
  void ill_typed(const toml::node& node) {
    draft_.report(name_, fmt::format("{} is {}", name_, kind_of(node)), expected(key_));
  }
  void refuse(const std::string& value) { draft_.report(name_, fmt::format("{} is {}", name_, value), expected(key_)); }

  bool is_good_text(const std::string& text) {
    if (!key_.choices.empty() && !key_.is_choice(text)) {
      refuse(toml_string(text.substr(0, 60)));
      return false;
    }
    if (text.size() <= kLongestString && text.find('\0') == std::string::npos) return true;
    draft_.report(name_, fmt::format("{} is too long or holds a NUL character", name_),
                  fmt::format("use at most {} bytes", kLongestString));
    return false;
  }
  bool is_not_empty(const std::string& text) {
    if (text.empty())
      draft_.report(name_, fmt::format("{} holds an empty string", name_), "name a file, a glob or a folder");
    return !text.empty();
  }

  void read_into(const toml::node& node, bool& target) {
    if (const auto value = node.value_exact<bool>()) {
      target = *value;
    } else {
      ill_typed(node);
    }
  }
  void read_into(const toml::node& node, std::int64_t& target) {
    const auto value = node.value_exact<std::int64_t>();
    if (!value) return ill_typed(node);
    if (!key_.range.contains(static_cast<double>(*value))) return refuse(fmt::format("{}", *value));
    target = *value;
  }
  void read_into(const toml::node& node, Reshard& target) {
    constexpr std::int64_t kMost = 1 << 20;
    if (const auto value = node.value_exact<std::int64_t>()) {
      if (*value < 1 || *value > kMost) return refuse(fmt::format("{}", *value));
      target = Reshard::over(*value);
    } else if (const auto whether = node.value_exact<bool>()) {
      target = *whether;
    } else {
      ill_typed(node);
    }
  }
  void read_into(const toml::node& node, double& target) {
    if (!node.is_number()) return ill_typed(node);
    const double value = node.value<double>().value_or(std::nan(""));
    if (!std::isfinite(value) || !key_.range.contains(value)) return refuse(fmt::format("{}", value));
    target = value;
  }
  void read_into(const toml::node& node, std::vector<double>& target) { read_numbers(node, target); }
  void read_into(const toml::node& node, std::vector<std::int64_t>& target) { read_numbers(node, target); }
  template <class Number>
  void read_numbers(const toml::node& node, std::vector<Number>& target) {
    const toml::array* const array = node.as_array();
    if (array == nullptr) return ill_typed(node);
    if (array->size() > kLongestList) return refuse("too long a list");
    std::vector<Number> list(array->size());
    for (std::size_t i = 0; i < list.size() && draft_.bad.count(name_) == 0; ++i) read_into((*array)[i], list[i]);
    target = std::move(list);
  }
  void read_into(const toml::node& node, Config::Duration& target) {
    if (const auto text = node.value_exact<std::string>()) return read_duration(*text, target);
    if (const auto time = node.value_exact<toml::time>()) {  // TOML's own spelling of one below a day: 01:30:00
      target.value = 3600.0 * time->hour + 60.0 * time->minute + time->second;
    } else {
      read_into(node, target.value);
    }
  }
  void read_into(const toml::node& node, Config::Count& target) {
    if (const auto text = node.value_exact<std::string>()) return read_count(*text, target);
    target.is_auto = false;
    read_into(node, target.value);
  }
  void read_count(const std::string& text, Config::Count& target) {
    if (text != "auto") return refuse(toml_string(text.substr(0, 60)));
    target = {.is_auto = true};
  }
  /// Seconds, or H:MM:SS.
  void read_duration(const std::string& text, Config::Duration& target) {
    std::vector<std::int64_t> parts;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ':');)
      parts.push_back(parse_integer<std::int64_t>(word).value_or(-1));
    constexpr std::int64_t kMostHours = 1'000'000;
    const bool is_clock = parts.size() == 3 && parts[0] <= kMostHours && parts[1] < 60 && parts[2] < 60;
    const bool is_good = (is_clock || parts.size() == 1) && !text.ends_with(':') &&
                         std::all_of(parts.begin(), parts.end(), [](std::int64_t part) { return part >= 0; });
    const double seconds =
        !is_good ? -1 : static_cast<double>(is_clock ? 3600 * parts[0] + 60 * parts[1] + parts[2] : parts[0]);
    if (!is_good || !key_.range.contains(seconds)) return refuse(toml_string(text.substr(0, 60)));
    target.value = seconds;
  }
  void read_into(const toml::node& node, std::string& target) {
    const auto value = node.value_exact<std::string>();
    if (!value) return ill_typed(node);
    if (is_good_text(*value)) target = bytes_of_toml(*value);
  }
  void read_into(const toml::node& node, std::vector<std::string>& target) {
    std::vector<std::string> list;
    if (const auto value = node.value_exact<std::string>()) {
      list.push_back(bytes_of_toml(*value));
    } else if (const toml::array* array = node.as_array()) {
      if (array->empty() && key_.is_required()) return refuse("empty");
      if (array->size() > kLongestList) return refuse("too long a list");
      for (const toml::node& entry : *array) {
        if (!entry.is_string())
          return draft_.report(name_, fmt::format("{} holds {}", name_, kind_of(entry)), expected(key_));
        list.push_back(bytes_of_toml(*entry.value_exact<std::string>()));
      }
    } else {
      return ill_typed(node);
    }
    for (const auto& text : list)
      if (!is_good_text(text) || !is_not_empty(text)) return;
    target = std::move(list);
  }

  ConfigDraft& draft_;
  const ConfigKey& key_;
  std::string name_;
};

bool is_table_name(std::string_view name) {
  for (const ConfigKey& key : config_keys())
    if (key.name.size() > name.size() && key.name.substr(0, name.size()) == name && key.name[name.size()] == '.')
      return true;
  return false;
}

void report_unknown(ConfigDraft& draft, const std::string& name, const std::string& where) {
  std::string advice = "train keys lists all keys";
  if (const auto now = renamed_config_key(name))
    advice = fmt::format("it is called {} now", *now);
  else if (const auto ours = foreign_config_key(name))
    advice = fmt::format("here that is {}", *ours);
  else if (const auto nearest = nearest_config_key(name))
    advice = fmt::format("did you mean {}?", *nearest);
  draft.problems.emplace_back(ExitCode::config, fmt::format("unknown key {}", name.substr(0, 80)), where, advice);
}

void read_entry(ConfigDraft& draft, const std::string& name, const toml::node& node, const std::string& where) {
  if (const ConfigKey* key = find_config_key(name)) return KeyReader(draft, *key, where).read(node);
  if (!is_table_name(name)) return report_unknown(draft, name, where);
  draft.problems.emplace_back(ExitCode::config, fmt::format("{} is {}", name, kind_of(node)), where,
                              fmt::format("{} is a table: give its keys one by one, as {}.KEY", name, name));
}

/// Two levels are all that the schema has; whatever lies deeper is part of an unknown or ill-typed entry.
void read_file_tables(ConfigDraft& draft, const toml::table& root) {
  const auto where = [&](const toml::node& node) {
    return fmt::format("{}:{}", draft.source, node.source().begin.line);
  };
  const auto plain = [](const toml::key& key) { return key.str().find('.') == std::string_view::npos; };
  for (const auto& [key, node] : root) {
    const std::string name(key.str());
    const toml::table* table = node.as_table();
    if (!plain(key)) {
      report_unknown(draft, '"' + name + '"', where(node));
    } else if (table == nullptr || (table->empty() && !is_table_name(name))) {
      read_entry(draft, name, node, where(node));
    } else {
      for (const auto& [leaf, child] : *table) {
        if (plain(leaf)) {
          read_entry(draft, name + "." + std::string(leaf.str()), child, where(child));
        } else {
          report_unknown(draft, fmt::format("{}.\"{}\"", name, leaf.str()), where(child));
        }
      }
    }
  }
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string::npos ? std::string() : text.substr(begin, end - begin + 1);
}

/// `text`: key=value.
void apply(ConfigDraft& draft, const std::string& text, const std::string& where) {
  const std::size_t equals = text.find('=');
  const auto refuse = [&](std::string what, std::string todo) {
    draft.problems.emplace_back(ExitCode::config, std::move(what), where, std::move(todo));
  };
  if (equals == std::string::npos) return refuse("no '=' in --set", "write --set key=value");
  const std::string name = overridden_key(text), value = trimmed(text.substr(equals + 1));
  const ConfigKey* key = find_config_key(name);
  if (key == nullptr && !is_table_name(name)) return report_unknown(draft, name, where);

  if (key != nullptr) {
    // For a key that takes strings, anything not spelled as a TOML string or array is the string itself.
    const std::size_t type = key->slot(draft.config).index();
    const bool takes_list = type == 4, is_clock = type == 6 && value.find(':') != std::string::npos;
    const bool is_word = type == 8 && value == "auto";
    const bool takes_text = type == 3 || takes_list || is_clock || is_word;
    const bool is_spelled = !value.empty() && (value[0] == '"' || value[0] == '\'' || (takes_list && value[0] == '['));
    if (takes_text && !is_spelled) return KeyReader(draft, *key, where).read_text(value);
  }
  const std::string spelled = "value = " + value;
  if (too_deep_line(spelled)) return draft.problems.push_back(nested_too_deeply(where));
  try {
    const toml::table table = toml::parse(spelled, where);
    if (table.size() != 1)
      return refuse(fmt::format("--set {} holds more than one value", name), "use one --set for each key");
    read_entry(draft, name, *table.get("value"), where);
  } catch (const toml::parse_error&) {
    if (key == nullptr)
      return refuse(fmt::format("{} is a table", name), fmt::format("set its keys one by one, as {}.KEY", name));
    KeyReader reader(draft, *key, where);
    draft.report(name, fmt::format("{} is {}", name, value.empty() ? "empty" : value.substr(0, 60)), expected(*key));
  }
}

void apply_override(ConfigDraft& draft, const std::string& text) { apply(draft, text, "--set " + text.substr(0, 60)); }

/// Under what the run's own file and command line give.
void apply_site(ConfigDraft& draft, const std::vector<SiteDefault>& site) {
  for (const SiteDefault& one : site) apply(draft, one.key + "=" + one.value, one.where);
  draft.site.swap(draft.given);
}

void read_keys(ConfigDraft& draft, std::string_view text) {
  if (const auto line = too_deep_line(text))
    throw ConfigError({nested_too_deeply(fmt::format("{}:{}", draft.source, *line))});
  try {
    read_file_tables(draft, toml::parse(text, draft.source));
  } catch (const toml::parse_error& error) {
    const std::string where = fmt::format("{}:{}", draft.source, error.source().begin.line);
    throw ConfigError({Error(ExitCode::config, std::string(error.description()), where, "correct the TOML")});
  }
}

}  // namespace

std::string read_config_file(const std::string& path) {
  const auto fail = [&](const std::string& what) -> ConfigError {
    return ConfigError({Error(ExitCode::config, what, path, "give the path of a TOML file")});
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw fail("configuration file not found");
  if (!std::filesystem::is_regular_file(status)) throw fail("the configuration is not a regular file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file)
    throw fail(fmt::format("the configuration cannot be opened: {}",
                           std::error_code(errno, std::generic_category()).message()));
  std::string text(ReaderLimits::kTomlBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) throw fail("the configuration cannot be read");
  if (text.size() > ReaderLimits::kTomlBytes) throw fail("the configuration is larger than 1 MiB");
  return text;
}

ConfigError::ConfigError(std::vector<Error> problems) : Error(problems.at(0)), problems_(std::move(problems)) {
  if (problems_.size() > kMaxProblems) problems_.erase(problems_.begin() + kMaxProblems, problems_.end());
}

std::string overridden_key(const std::string& text) { return trimmed(text.substr(0, text.find('='))); }

void check_overrides(const std::vector<std::string>& overrides) {
  ConfigDraft draft;
  for (const std::string& text : overrides) apply_override(draft, text);
  if (!draft.problems.empty()) throw ConfigError(std::move(draft.problems));
}

ConfigDraft parse_keys(std::string_view text, const std::string& source) {
  ConfigDraft draft;
  draft.source = source;
  read_keys(draft, text);
  return draft;
}

Config parse_config(std::string_view text, const std::string& source, const std::vector<std::string>& overrides,
                    ConfigFor use, const std::vector<SiteDefault>& site) {
  ConfigDraft draft;
  draft.source = source;
  draft.use = use;
  apply_site(draft, site);
  read_keys(draft, text);
  for (const std::string& text_of_override : overrides) apply_override(draft, text_of_override);
  for (const auto& [key, where] : draft.given) draft.site.erase(key);
  resolve_config(draft);
  if (!draft.problems.empty()) throw ConfigError(std::move(draft.problems));
  draft.config.given = {std::move(draft.given), std::move(draft.site)};
  return std::move(draft.config);
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides, ConfigFor use,
                   const std::vector<SiteDefault>& site) {
  return parse_config(read_config_file(path), path, overrides, use, site);
}

std::string to_toml(const Config& config) {
  Config copy = config;
  std::string text, table;
  for (const ConfigKey& key : config_keys()) {
    const std::size_t dot = key.name.find('.');
    if (dot != std::string_view::npos && key.name.substr(0, dot) != table) {
      table = key.name.substr(0, dot);
      text += fmt::format("\n[{}]\n", table);
    }
    text += fmt::format("{} = {}\n", dot == std::string_view::npos ? key.name : key.name.substr(dot + 1),
                        toml_value(key.slot(copy)));
  }
  return text;
}

}  // namespace zs
