#include "model/train/inference/task_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "model/data/bad_data.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/document_encoder.h"
#include "runtime/base/random.h"

namespace zs {
namespace {

using nlohmann::json;

constexpr const char* kShape =
    R"(write {"prompt": ..., "choices": [...], "answer": NUMBER}, or {"prompt": ..., "answer": TEXT})";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf", kBlank = " \t\r\n";

json parsed(std::string_view line, const std::string& where) {
  if (line.find_first_not_of(kBlank) == line.npos)
    throw bad_data("the line is empty, and no JSON object", where, "leave it out");
  json tree;
  if (const auto problem = read_json_tree(line, tree))
    throw bad_data(problem->is_no_json ? fmt::format("the line is not JSON, from its byte {} on", problem->byte)
                                       : fmt::format("the line {}, at its byte {}", problem->what, problem->byte),
                   where, "write one JSON object a line");
  if (!tree.is_object())
    throw bad_data(fmt::format("the line is a JSON {}, not an object", tree.type_name()), where, kShape);
  return tree;
}

/// Fields of one line.
class LineFields {
 public:
  LineFields(std::string_view line, std::string where) : tree_(parsed(line, where)), where_(std::move(where)) {}

  bool has(const char* name) const { return tree_.contains(name); }
  const json& at(const char* name) const {
    if (!has(name)) throw bad_data(fmt::format("the line has no field \"{}\"", name), where_, kShape);
    return tree_.at(name);
  }
  std::string text(const char* name) const {
    const json& value = at(name);
    if (!value.is_string()) refuse(name, value, "a text");
    return value.get<std::string>();
  }
  /// A list of texts, none of them empty.
  std::vector<std::string> texts(const char* name) const {
    const json& value = at(name);
    const auto is_text = [](const json& one) { return one.is_string() && !one.get_ref<const std::string&>().empty(); };
    if (!value.is_array()) refuse(name, value, "a list of texts");
    if (value.empty() || !std::all_of(value.begin(), value.end(), is_text))
      throw bad_data(fmt::format("the field \"{}\" is no list of texts, none of them empty", name), where_, kShape);
    return value.get<std::vector<std::string>>();
  }
  void refuse_others(const std::vector<const char*>& names, const char* form) const {
    for (const char* const name : names)
      if (has(name))
        throw bad_data(fmt::format("the field \"{}\" has no effect on a line {}", name, form), where_, "leave it out");
  }
  [[noreturn]] void refuse(const char* name, const json& value, const char* wanted) const {
    throw bad_data(fmt::format("the field \"{}\" is a JSON {}, not {}", name, value.type_name(), wanted), where_,
                   kShape);
  }
  const std::string& where() const { return where_; }

 private:
  json tree_;
  std::string where_;
};

/// Index of the right choice: a number from 0, or the text of a choice.
std::size_t right_choice(const LineFields& fields, const std::vector<std::string>& choices) {
  const json& answer = fields.at("answer");
  if (answer.is_string()) {
    const auto found = std::find(choices.begin(), choices.end(), answer.get_ref<const std::string&>());
    if (found == choices.end())
      throw bad_data("the answer is none of the choices", fields.where(), "write one of them, or its number from 0");
    return static_cast<std::size_t>(found - choices.begin());
  }
  if (!answer.is_number_integer()) fields.refuse("answer", answer, "the number of a choice or its text");
  const bool is_known = answer.is_number_unsigned() && answer.get<std::uint64_t>() < choices.size();
  if (!is_known)
    throw bad_data(fmt::format("the answer {} is not among {} choices", answer.dump(), choices.size()), fields.where(),
                   "count them from 0");
  return answer.get<std::size_t>();
}

TaskLine choice_line(const LineFields& fields) {
  fields.refuse_others({"until", "max_tokens"}, "with choices");
  TaskLine line{.prompt = fields.text("prompt"), .choices = fields.texts("choices")};
  if (line.choices.size() < 2)
    throw bad_data("there is one choice", fields.where(), "write at least two, or leave choices out");
  line.right = right_choice(fields, line.choices);
  if (fields.has("delimiter")) line.delimiter = fields.text("delimiter");
  return line;
}

TaskLine answer_line(const LineFields& fields) {
  fields.refuse_others({"delimiter"}, "without choices");
  TaskLine line{.prompt = fields.text("prompt")};
  line.answer = fields.text("answer");
  line.until = {"\n\n"};
  if (fields.has("until"))
    line.until = fields.at("until").is_string() && fields.text("until") != "" ? std::vector{fields.text("until")}
                                                                              : fields.texts("until");
  if (!fields.has("max_tokens")) return line;
  constexpr std::uint64_t kMost = 1'000'000;
  const json& most = fields.at("max_tokens");
  if (!most.is_number_unsigned() || most.get<std::uint64_t>() < 1 || most.get<std::uint64_t>() > kMost)
    throw bad_data("max_tokens is no number from 1 to 1000000", fields.where(), "write one, or leave it out");
  line.max_tokens = most.get<std::int64_t>();
  return line;
}

}  // namespace

bool is_task_file(const std::string& path, const std::string& field) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string line(kByteOrderMark.size(), '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  if (line != kByteOrderMark) file.clear(), file.seekg(0);
  if (file.peek() != '{' || !std::getline(file, line)) return false;
  json tree;
  if (read_json_tree(line, tree) || !tree.is_object() || tree.contains("messages")) return false;
  if (tree.contains("choices")) return true;
  if (!tree.contains("prompt") || !tree.contains("answer")) return false;
  return field != "answer" || tree.contains("until") || tree.contains("max_tokens");
}

Task read_task(const std::string& path) {
  const std::string whole = read_text_file(path);
  Task task{.name = std::filesystem::path(path).stem().string(), .lines = {}, .digest = hash_name(whole)};
  std::string_view text = whole;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (std::int64_t number = 1; text.find_first_not_of(kBlank) != text.npos; ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const LineFields fields(text.substr(0, end), fmt::format("{}:{}", path, number));
    const bool has_choices = fields.has("choices");
    if (!task.lines.empty() && has_choices != task.has_choices())
      throw bad_data(fmt::format("the line has {}choices, unlike the first", has_choices ? "" : "no "), fields.where(),
                     "write one file for each form");
    task.lines.push_back(has_choices ? choice_line(fields) : answer_line(fields));
    task.lines.back().where = fields.where();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (task.lines.empty()) throw bad_data("the task has no lines", path, kShape);
  return task;
}

}  // namespace zs
