#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "model/chat/value.h"
#include "model/json/strict_json.h"

namespace zs::jinja {

/// A JSON text as a value, its objects in their order; of a key that comes twice the last value counts.
std::optional<JsonProblem> read_value(std::string_view text, Value& value);

/// Form of a JSON text, as Python's json.dumps has it.
struct JsonForm {
  bool is_ascii = false, sorts_keys = false;
  std::optional<std::string> indent;  ///< space before each level; none: one line
  std::string item_separator = ", ", key_separator = ": ";
};
/// Throws for what JSON has not.
std::string to_json(const Value& value, const JsonForm& form);

}  // namespace zs::jinja
