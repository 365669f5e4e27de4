#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/train/config/config.h"

namespace zs {

/// Slot where a key's value lives in a Config; the alternative is the key's type.
using ConfigSlot = std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*, Reshard*,
                                Config::Duration*, std::vector<double>*, Config::Count*, std::vector<std::int64_t>*>;

struct ConfigRange {
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool min_open = false, max_open = false;  ///< the bound itself is outside

  bool contains(double value) const {
    return (min_open ? value > min : value >= min) && (max_open ? value < max : value <= max);
  }
  /// "above 0, at most 10"; empty without bounds.
  std::string str() const;
};

/// Rule for a run that goes on with another value of a key: it is refused; it goes on, and names the change; or it goes
/// on.
enum class OnResume : std::uint8_t { refused, named, free };

/// One row of the schema. Everything that parses, checks, prints or documents a key reads this row.
struct ConfigKey {
  std::string_view name;  ///< "train.lr"
  ConfigSlot (*slot)(Config&);
  ConfigRange range;
  /// "a|b|c"; empty: any text. An empty choice is spelled "" (model.preset). "a:NAME": any text after "a:".
  std::string_view choices;
  std::string_view default_note;  ///< instead of a constant default; "required" makes the key mandatory
  std::string_view doc;
  /// refused: what the state was made with and makes no sense without, the order of data, and what its elements mean.
  /// free: what says where and how fast, not what; files may move, what they hold is compared instead.
  OnResume on_resume = OnResume::named;

  bool is_required() const { return default_note == "required"; }
  std::vector<std::string_view> choice_list() const;
  bool is_choice(std::string_view text) const;
  std::string type() const;          ///< "integer", "string or array of strings" ...
  std::string allowed() const;       ///< the range or the choices, in words; empty: anything of the type
  std::string default_text() const;  ///< as TOML, or the note
};

/// All keys, in the order of the documentation.
std::span<const ConfigKey> config_keys();
const ConfigKey* find_config_key(std::string_view name);
/// Present name of a key that was called so before.
std::optional<std::string_view> renamed_config_key(std::string_view name);
/// Key for what `name`, behind its last dot, is in transformers, trl, peft or nanoGPT.
std::optional<std::string_view> foreign_config_key(std::string_view name);
/// The key that `name` was most likely meant to be, or nothing when none is near.
std::optional<std::string_view> nearest_config_key(std::string_view name);

/// A slot's value as TOML; reads back exactly.
std::string toml_value(const ConfigSlot& slot);
/// The list of the keys that match a pattern, or have it in their names, for the terminal; and all as Markdown tables
/// (the generated part of docs/configuration.md).
std::string config_help(const std::string& pattern = "*");
std::string config_markdown();

}  // namespace zs
