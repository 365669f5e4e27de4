#include "model/train/config/config_schema.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <utility>

#include "model/families/family.h"
#include "model/train/config/config_keys.h"
#include "model/train/config/optimizer_kind.h"
#include "model/train/config/toml_text.h"

namespace zs {
namespace {

std::string number_text(double value) { return fmt::format("{}", value); }

/// Documentation of a key, with what the tables of families and of optimizers add to it.
std::string doc_of(const ConfigKey& key) {
  std::string doc(key.doc), names;
  if (key.name == "model.family")
    for (const Family* family : families()) doc += fmt::format(" `{}`: {}.", family->name, family->summary);
  if (key.name == "train.optimizer")
    for (const OptimizerKind& kind : optimizer_kinds()) doc += fmt::format(" `{}`: {}.", kind.name, kind.summary);
  for (const Family* family : families_with(key.name))
    names += fmt::format("{}`{}`", names.empty() ? "" : ", ", family->name);
  return names.empty() ? doc : fmt::format("{} Families: {}.", doc, names);
}

auto named(std::string_view name) {
  return [name](const ConfigKey& key) { return key.name == name; };
}

}  // namespace

std::string ConfigRange::str() const {
  if (min == max) return number_text(min);
  const std::string low = min == -config_ranges::kInf ? "" : (min_open ? "above " : "") + number_text(min);
  const std::string high = max == config_ranges::kInf ? "" : (max_open ? "below " : "at most ") + number_text(max);
  if (low.empty() || high.empty()) return low.empty() ? high : (min_open ? low : low + " or more");
  if (!min_open && !max_open) return low + " to " + number_text(max);
  return (min_open ? low : low + " or more") + ", " + high;
}

std::vector<std::string_view> ConfigKey::choice_list() const {
  std::vector<std::string_view> list;
  if (choices.empty()) return list;
  for (std::size_t begin = 0;;) {
    const std::size_t end = choices.find('|', begin);
    list.push_back(choices.substr(begin, end - begin));
    if (end == std::string_view::npos) return list;
    begin = end + 1;
  }
}

bool ConfigKey::is_choice(std::string_view text) const {
  const std::vector<std::string_view> list = choice_list();
  return std::any_of(list.begin(), list.end(), [&](std::string_view choice) {
    const std::size_t colon = choice.find(':');
    return colon == choice.npos ? text == choice
                                : text.size() > colon + 1 && text.starts_with(choice.substr(0, colon + 1));
  });
}

std::string ConfigKey::type() const {
  static constexpr std::array kTypes = {"true or false",
                                        "integer",
                                        "number",
                                        "string",
                                        "string or array of strings",
                                        "true, false or integer",
                                        "seconds or \"H:MM:SS\"",
                                        "array of numbers",
                                        "integer or \"auto\"",
                                        "array of integers"};
  Config config;
  return kTypes[slot(config).index()];
}

std::string ConfigKey::allowed() const {
  if (choices.empty()) return range.str();
  std::string text;
  for (const auto choice : choice_list()) text += (text.empty() ? "" : ", ") + toml_string(choice);
  return text;
}

std::string ConfigKey::default_text() const {
  if (!default_note.empty()) return std::string(default_note);
  Config config;
  return toml_value(slot(config));
}

std::span<const ConfigKey> config_keys() {
  static std::deque<std::string> texts;  // that keys point into
  static const auto keys = [] {
    std::vector<ConfigKey> all;
    for (const auto& part : {keys_of_training(), keys_of_running()}) all.insert(all.end(), part.begin(), part.end());
    const auto keep = [](std::string text) -> std::string_view { return texts.emplace_back(std::move(text)); };
    for (ConfigKey& key : all) {
      key.doc = keep(doc_of(key));
      if (key.name == "model.family") key.choices = keep(family_choices());
      if (key.name == "train.optimizer") key.choices = keep(optimizer_choices());
      if (key.name == "model.preset") key.choices = keep("|" + preset_choices());
    }
    return all;
  }();
  return keys;
}

const ConfigKey* find_config_key(std::string_view name) {
  const std::span<const ConfigKey> keys = config_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), named(name));
  return found == keys.end() ? nullptr : &*found;
}

std::string toml_value(const ConfigSlot& slot) {
  if (const auto* flag = std::get_if<bool*>(&slot)) return **flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t*>(&slot)) return fmt::format("{}", **integer);
  if (const auto* number = std::get_if<double*>(&slot)) {
    std::string text = number_text(**number);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  if (const auto* text = std::get_if<std::string*>(&slot)) return toml_string(**text);
  if (const auto* reshard = std::get_if<Reshard*>(&slot)) return (*reshard)->str();
  if (const auto* duration = std::get_if<Config::Duration*>(&slot)) return toml_value(ConfigSlot(&(*duration)->value));
  if (const auto* count = std::get_if<Config::Count*>(&slot))
    return (*count)->is_auto ? toml_string("auto") : toml_value(ConfigSlot(&(*count)->value));
  std::string list;
  if (const auto* numbers = std::get_if<std::vector<double>*>(&slot)) {
    for (double number : **numbers) list += (list.empty() ? "" : ", ") + toml_value(ConfigSlot(&number));
    return "[" + list + "]";
  }
  if (const auto* integers = std::get_if<std::vector<std::int64_t>*>(&slot))
    return fmt::format("[{}]", fmt::join(**integers, ", "));
  for (const auto& text : *std::get<std::vector<std::string>*>(slot))
    list += (list.empty() ? "" : ", ") + toml_string(text);
  return "[" + list + "]";
}

}  // namespace zs
