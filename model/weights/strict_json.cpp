#include "model/weights/strict_json.h"

#include <set>
#include <vector>

#include "model/data/utf8.h"

namespace zs {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

[[noreturn]] void refuse_at(const std::string& file, std::size_t position, const std::string& what) {
  refuse_weights(fmt::format("{}@{}", file, position), what);
}

/// Checks for what the library lets pass, or ends at.
void check_text(std::string_view text, const std::string& file, const char* what) {
  if (text.starts_with(kByteOrderMark)) refuse_at(file, 0, fmt::format("{} begins with a byte order mark", what));
  if (const auto nul = text.find('\0'); nul != text.npos) refuse_at(file, nul, fmt::format("{} has a NUL byte", what));
}

}  // namespace

bool StrictJsonHandler::parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
  error_position = position;
  error_reason = error.what();
  return false;
}

void parse_strictly(std::string_view text, const std::string& file, const char* what, StrictJsonHandler& handler) {
  check_text(text, file, what);
  if (nlohmann::json::sax_parse(text, &handler)) return;
  std::string reason = handler.error_reason;
  if (const auto colon = reason.find("syntax error"); colon != std::string::npos) reason.erase(0, colon);
  refuse_at(file, handler.error_position, fmt::format("{} is not valid JSON: {}", what, shortened(reason)));
}

nlohmann::json parse_document(std::string_view text, const std::string& file) {
  constexpr int kDeepest = 128;
  check_text(text, file, "the file");
  std::vector<std::set<std::string>> keys;  // keys of the objects that are open
  const auto look = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kDeepest) refuse_at(file, 0, fmt::format("the file nests deeper than {}", kDeepest));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      refuse_at(file, 0, fmt::format("the key \"{}\" occurs twice", shortened(value.get<std::string>())));
    return true;
  };
  try {
    return nlohmann::json::parse(text, look);
  } catch (const nlohmann::json::parse_error& error) {
    refuse_at(file, error.byte, "the file is not valid JSON");
  } catch (const nlohmann::json::exception&) {
    refuse_at(file, 0, "the file has a number that is too large");
  }
}

void refuse_weights(const std::string& file, const std::string& what) {
  throw Error(ExitCode::model, what, file, "get it again from where it came from");
}

std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 60;
  if (text.size() <= kMost) return text;
  std::size_t end = kMost - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

bool has_control_characters(std::string_view text) {
  while (!text.empty()) {
    const Utf8 next = next_utf8(text);
    if (next.is_control) return true;
    text.remove_prefix(next.bytes);
  }
  return false;
}

}  // namespace zs
