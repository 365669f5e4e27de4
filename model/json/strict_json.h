#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/check.h"
#include "runtime/base/reader_limits.h"

namespace zs {

/// A problem of a JSON text.
struct JsonProblem {
  std::size_t byte = 0;        ///< position in the text
  std::string what = {};       ///< "is not valid JSON: syntax error ...", "nests deeper than 128"
  bool is_no_json = false;     ///< else it is JSON, of a kind that is not read
  bool is_of_handler = false;  ///< the handler has returned false, and knows why
};

/// Takes a JSON text value by value. Numbers from 0 to 2^64 - 1 written as integers come as unsigned, every other
/// one as what it is.
class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool binary(nlohmann::json::binary_t&) final { return false; }  // never in a text
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) final { return false; }
};

/// Gives `text` to `handler` as far as nothing is wrong: every JSON text that the program reads goes through here, so
/// that none is an exception of the library's or takes memory of its own. Refused is what is not UTF-8, begins with a
/// byte order mark, has a NUL, is not JSON, nests deeper than ReaderLimits::kJsonDepth or has a number that no double
/// holds.
std::optional<JsonProblem> read_json(std::string_view text, JsonHandler& handler);

/// `text` as a tree of about `most_bytes` at most. An object that has a key twice is refused.
std::optional<JsonProblem> read_json_tree(std::string_view text, nlohmann::json& tree,
                                          std::int64_t most_bytes = ReaderLimits::kJsonTreeBytes);

/// read_json() of a part of a model's file. Error(model) that names `file` and the byte. `what`: "the header".
void parse_strictly(std::string_view text, const std::string& file, const char* what, JsonHandler& handler);
/// read_json_tree() of a model's file. Error(model) that names it and the byte.
nlohmann::json parse_document(std::string_view text, const std::string& file,
                              std::int64_t most_bytes = ReaderLimits::kJsonTreeBytes);

/// A document as text. Bytes that are not UTF-8, of a name or a path, become U+FFFD.
template <class Json>
std::string json_text(const Json& document, int indent = 2) {
  return nlohmann::ordered_json(document).dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Error(model): what is wrong with a file of weights.
[[noreturn]] void refuse_weights(const std::string& file, const std::string& what);

/// At most 60 bytes of a name, for a message.
std::string shortened(const std::string& text);

}  // namespace zs
