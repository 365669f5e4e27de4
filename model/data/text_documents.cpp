#include "model/data/text_documents.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "model/data/bad_data.h"
#include "model/data/file_format.h"
#include "model/tokenizer/document_encoder.h"

namespace zs {
namespace {

constexpr const char* kLeaveOut = "leave it out, or give it a text";

/// At most 60 bytes of a name, for a message.
std::string short_name(const std::string& name) { return name.size() <= 60 ? name : name.substr(0, 57) + "..."; }

std::string names_of(const nlohmann::json& object) {
  std::string names;
  for (const auto& entry : object.items()) {
    if (names.size() > 120) return names + " ...";
    names += (names.empty() ? "" : ", ") + short_name(entry.key());
  }
  return names.empty() ? "no fields" : names;
}

/// Advice for a line that is no JSON.
std::string advice(std::string_view line, std::size_t byte, std::string_view reason) {
  if (line[line.find_first_not_of(" \t")] == '[')
    return "a JSON array becomes one object a line with: jq -c '.[]' FILE";
  const std::string_view rest = line.substr(std::min(byte > 0 ? byte - 1 : 0, line.size()));
  const auto is_at = [&](std::string_view word) {  // the parser stops within it
    const std::size_t found = line.substr(0, std::min(line.size(), byte + word.size())).rfind(word);
    return found != line.npos && found + word.size() >= byte;
  };
  if (is_at("NaN") || is_at("Infinity"))
    return "JSON has no NaN and no Infinity, which Python writes: leave the field out, or write null";
  if (reason.find("surrogate") != reason.npos)
    return "an escape \\ud800 to \\udfff alone is half a character: leave it out, or write the whole one";
  return rest.empty() ? "the line ends within the object: write one JSON object a line, whole"
                      : "write one JSON object a line, in UTF-8";
}

nlohmann::json parse_line(std::string_view line, const std::string& where) {
  if (line.find_first_not_of(" \t\r") == line.npos)
    throw bad_data("the line is empty, and no JSON object", where, "leave it out");
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    throw bad_data(fmt::format("the line is not JSON, from its byte {} on", error.byte), where,
                   advice(line, error.byte, error.what()));
  }
  if (!object.is_object())
    throw bad_data(fmt::format("the line is a JSON {}, not an object", object.type_name()), where,
                   object.is_array() ? "a JSON array becomes one object a line with: jq -c '.[]' FILE"
                                     : "write one JSON object a line");
  return object;
}

std::string text_field(const nlohmann::json& object, const std::string& field, const char* key,
                       const std::string& where) {
  const auto found = object.find(field);
  for (const char* const chat : {"messages", "conversations"})
    if ((found == object.end() || field == chat) && object.contains(chat) && object[chat].is_array())
      throw bad_data(fmt::format("the line is a chat: its field \"{}\" is a list", chat), where,
                     "render it with the model's chat template first (docs/fine-tuning.md, Chats)");
  if (found == object.end())
    throw bad_data(fmt::format("the line has no field \"{}\"", short_name(field)), where,
                   fmt::format("set {} to one of its fields: {}", key, names_of(object)));
  if (!found->is_string())
    throw bad_data(fmt::format("the field \"{}\" is a JSON {}, not a string", short_name(field), found->type_name()),
                   where, fmt::format("set {} to a field that is text", key));
  return found->get<std::string>();
}

TextDocument json_document(std::string_view line, const DocumentOptions& options, std::string where) {
  const nlohmann::json object = parse_line(line, where);
  TextDocument document;
  if (!options.prompt_field.empty())
    document.prompt = text_field(object, options.prompt_field, "data.prompt_field", where);
  document.text = text_field(object, options.field, "data.field", where);
  if (document.text.empty())
    throw bad_data(fmt::format("the document is empty: its field \"{}\" has no text", short_name(options.field)), where,
                   kLeaveOut);
  document.where = std::move(where);
  return document;
}

TextDocument line_document(std::string_view line, std::string where) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.empty()) throw bad_data("the document is empty: the line has no text", where, kLeaveOut);
  return {.prompt = {}, .text = std::string(line), .where = std::move(where)};
}

void add_lines(std::string_view text, const std::string& file, const DocumentOptions& options,
               std::vector<TextDocument>& documents) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (text.find_first_not_of(" \t\r\n") == text.npos) return;  // blank lines at the end
    const std::string_view line = text.substr(0, end);
    std::string where = fmt::format("{}:{}", file, number);
    documents.push_back(options.format == DocumentFormat::jsonl ? json_document(line, options, std::move(where))
                                                                : line_document(line, std::move(where)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace

std::vector<TextDocument> read_documents(const std::vector<std::string>& files, const DocumentOptions& options) {
  std::vector<TextDocument> documents;
  for (const std::string& file : files) {
    std::string text = read_text_file(file);
    recognize({}, {std::string_view(text).substr(0, FileHead::kBytes), std::ssize(text), file});
    if (options.format != DocumentFormat::files) {
      add_lines(text, file, options, documents);
      continue;
    }
    if (text.empty()) throw bad_data("the document is empty: the file has no text", file, kLeaveOut);
    documents.push_back({.prompt = {}, .text = std::move(text), .where = file});
  }
  return documents;
}

}  // namespace zs
