#include "model/data/text_documents.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "model/data/bad_data.h"
#include "model/data/file_format.h"
#include "model/data/preference_documents.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/document_encoder.h"

namespace zs {
namespace {

constexpr const char* kLeaveOut = "leave it out, or give it a text";
constexpr const char* kArrayAdvice = "a JSON array becomes one object a line with: jq -c '.[]' FILE";

/// Keeps the values of some fields of a line of JSON, and nothing else. A field that comes twice has its last value.
class LineHandler final : public JsonHandler {
 public:
  struct Field {
    std::string name;
    const char* type = nullptr;  ///< null: the line has no such field
    std::string text = {};       ///< a string's value
  };
  /// `wants_names`: also gathers what fields there are, as far as a message shows them.
  explicit LineHandler(std::vector<Field> fields, bool wants_names = false)
      : fields_(std::move(fields)), wants_names_(wants_names) {}

  const Field& field(std::size_t i) const { return fields_[i]; }
  /// "object" where the line is one.
  const char* type() const { return type_; }
  std::string names() const { return names_.empty() ? "no fields" : names_; }

 private:
  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("boolean"); }
  bool number_integer(number_integer_t) override { return value("number"); }
  bool number_unsigned(number_unsigned_t) override { return value("number"); }
  bool number_float(number_float_t, const string_t&) override { return value("number"); }
  bool string(string_t& text) override {
    value("string");
    if (depth_ == 1 && field_ != nullptr) field_->text = std::move(text);
    return true;
  }
  bool start_object(std::size_t) override { return value("object"), ++depth_, true; }
  bool start_array(std::size_t) override { return value("array"), ++depth_, true; }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    constexpr std::size_t kShown = 120;
    if (depth_ != 1) return true;
    field_ = nullptr;
    for (Field& field : fields_)
      if (field.name == name) field_ = &field;
    if (!wants_names_) return true;
    wants_names_ = names_.size() <= kShown;
    names_ += names_.empty() ? shortened(name) : wants_names_ ? ", " + shortened(name) : " ...";
    return true;
  }

  bool value(const char* type) {
    if (depth_ == 0) type_ = type;
    if (depth_ == 1 && field_ != nullptr) field_->type = type;
    return true;
  }

  std::vector<Field> fields_;
  bool wants_names_;
  Field* field_ = nullptr;  // whose value comes next; null: of one that nobody reads
  const char* type_ = "";
  int depth_ = 0;
  std::string names_;
};

/// True if the four digits of an escape are half a character.
bool is_surrogate(std::string_view digits) {
  return digits.size() >= 4 && (digits[0] == 'd' || digits[0] == 'D') && digits[1] >= '8' &&
         std::isxdigit(static_cast<unsigned char>(digits[1])) != 0;
}

/// Advice for a line that is no JSON.
std::string advice(std::string_view line, std::size_t byte) {
  if (line[line.find_first_not_of(" \t")] == '[') return kArrayAdvice;
  const std::string_view rest = line.substr(std::min(byte > 0 ? byte - 1 : 0, line.size()));
  const auto is_at = [&](std::string_view word) {  // the parser stops within it
    const std::size_t found = line.substr(0, std::min(line.size(), byte + word.size())).rfind(word);
    return found != line.npos && found + word.size() >= byte;
  };
  if (is_at("NaN") || is_at("Infinity"))
    return "JSON has no NaN and no Infinity, which Python writes: leave the field out, or write null";
  constexpr std::size_t kEscape = 6;  // "\\ud83d", behind which the parser stops, or behind another escape
  const std::size_t escape = line.substr(0, byte).rfind("\\u");
  if (escape != line.npos && byte <= escape + 2 * kEscape + 1 && is_surrogate(line.substr(escape + 2)))
    return "an escape \\ud800 to \\udfff alone is half a character: leave it out, or write the whole one";
  return rest.empty() ? "the line ends within the object: write one JSON object a line, whole"
                      : "write one JSON object a line, in UTF-8";
}

void read_line(std::string_view line, LineHandler& handler, const std::string& where) {
  if (line.find_first_not_of(" \t\r") == line.npos)
    throw bad_data("the line is empty, and no JSON object", where, "leave it out");
  if (const auto problem = read_json(line, handler))
    throw bad_data(problem->is_no_json ? fmt::format("the line is not JSON, from its byte {} on", problem->byte)
                                       : fmt::format("the line {}, at its byte {}", problem->what, problem->byte),
                   where, advice(line, problem->byte));
  if (const std::string_view type = handler.type(); type != "object")
    throw bad_data(fmt::format("the line is a JSON {}, not an object", type), where,
                   type == "array" ? kArrayAdvice : "write one JSON object a line");
}

std::string fields_of(std::string_view line, const std::string& where) {
  LineHandler handler({}, true);
  read_line(line, handler, where);
  return handler.names();
}

/// Refuses a line whose conversation stands where a text is asked for.
void check_no_chat(const LineHandler::Field& field, std::string_view line, const std::string& where) {
  for (const char* const chat : {"messages", "conversations"}) {
    if (field.type != nullptr && field.name != chat) continue;
    LineHandler handler({{.name = chat}});
    read_line(line, handler, where);
    const char* const type = handler.field(0).type;
    if (type != nullptr && std::string_view(type) == "array")
      throw bad_data(
          fmt::format("the line is a chat: its field \"{}\" is a list", chat), where,
          std::string_view(chat) == "messages"
              ? "set data.format = \"chat\""
              : "rename conversations, from and value: messages, role and content; then set data.format = \"chat\"");
  }
}

const std::string& text_of(const LineHandler::Field& field, const char* key, std::string_view line,
                           const std::string& where) {
  if (field.type == nullptr || std::string_view(field.type) != "string") check_no_chat(field, line, where);
  if (field.type == nullptr)
    throw bad_data(fmt::format("the line has no field \"{}\"", shortened(field.name)), where,
                   fmt::format("set {} to one of its fields: {}", key, fields_of(line, where)));
  if (std::string_view(field.type) != "string")
    throw bad_data(fmt::format("the field \"{}\" is a JSON {}, not a string", shortened(field.name), field.type), where,
                   fmt::format("set {} to a field that is text", key));
  return field.text;
}

TextDocument json_document(std::string_view line, const DocumentOptions& options, std::string where) {
  const bool has_prompt = !options.prompt_field.empty();
  std::vector<LineHandler::Field> fields = {{.name = options.field}};
  const bool is_other = has_prompt && options.prompt_field != options.field;
  if (is_other) fields.push_back({.name = options.prompt_field});
  LineHandler handler(std::move(fields));
  read_line(line, handler, where);
  TextDocument document;
  if (has_prompt) document.prompt = text_of(handler.field(is_other ? 1 : 0), "data.prompt_field", line, where);
  document.text = text_of(handler.field(0), "data.field", line, where);
  if (document.text.empty())
    throw bad_data(fmt::format("the document is empty: its field \"{}\" has no text", shortened(options.field)), where,
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
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (options.format != DocumentFormat::lines && text.starts_with(kByteOrderMark))
    text.remove_prefix(kByteOrderMark.size());
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (text.find_first_not_of(" \t\r\n") == text.npos) return;  // blank lines at the end
    const std::string_view line = text.substr(0, end);
    std::string where = fmt::format("{}:{}", file, number);
    if (options.format == DocumentFormat::preference) {
      for (TextDocument& one : preference_documents(line, where)) documents.push_back(std::move(one));
    } else {
      documents.push_back(options.format == DocumentFormat::jsonl ? json_document(line, options, std::move(where))
                                                                  : line_document(line, std::move(where)));
      documents.back().is_chat = options.format == DocumentFormat::chat;
    }
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
