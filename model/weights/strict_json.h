#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/base/check.h"

namespace zs {

/// Handler that reads JSON of files that nobody vouches for. Numbers from 0 to 2^64 - 1 written as integers come as
/// unsigned, every other one as what it is.
class StrictJsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool binary(nlohmann::json::binary_t&) final { return false; }  // never in a text
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception& error) final;

  std::size_t error_position = 0;
  std::string error_reason;
};

/// Gives `text` to `handler`. Error(model) that names `file` and the byte, where the text is not UTF-8, begins with a
/// byte order mark, has a NUL, or is not JSON. `what`: "the header".
void parse_strictly(std::string_view text, const std::string& file, const char* what, StrictJsonHandler& handler);

/// A JSON document in which no object has a key twice, and nothing nests deeper than 128. Error(model).
nlohmann::json parse_document(std::string_view text, const std::string& file);

/// Error(model): what is wrong with a file of weights.
[[noreturn]] void refuse_weights(const std::string& file, const std::string& what);

/// First bytes of a name, at most 60, for a message.
std::string shortened(const std::string& text);
/// C0, DEL or C1.
bool has_control_characters(std::string_view text);

}  // namespace zs
