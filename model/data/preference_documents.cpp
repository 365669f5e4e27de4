#include "model/data/preference_documents.h"

#include "model/data/bad_data.h"
#include "model/json/strict_json.h"

namespace zs {
namespace {

using nlohmann::json;

constexpr const char* kShape = R"(write {"prompt": ..., "chosen": ..., "rejected": ...}, texts or lists of messages)";

json parsed(std::string_view line, const std::string& where) {
  json tree;
  if (const auto problem = read_json_tree(line, tree))
    throw bad_data(problem->is_no_json ? fmt::format("the line is not JSON, from its byte {} on", problem->byte)
                                       : fmt::format("the line {}, at its byte {}", problem->what, problem->byte),
                   where, "write one JSON object a line");
  if (!tree.is_object())
    throw bad_data(fmt::format("the line is a JSON {}, not an object", tree.type_name()), where, kShape);
  if (tree.contains("tools"))
    throw bad_data("the line has tools, for which preference data has no place", where, "leave them out");
  return tree;
}

const json& field(const json& line, const char* name, const std::string& where) {
  const auto found = line.find(name);
  if (found == line.end()) throw bad_data(fmt::format("the line has no field \"{}\"", name), where, kShape);
  if (!found->is_string() && !found->is_array())
    throw bad_data(
        fmt::format("the field \"{}\" is a JSON {}, neither a text nor a list of messages", name, found->type_name()),
        where, kShape);
  if (found->empty() || *found == "")
    throw bad_data(fmt::format("the field \"{}\" is empty", name), where, "leave the pair out");
  return *found;
}

TextDocument document_of(const json& prompt, const json& answer, const char* name, const std::string& where) {
  TextDocument document{.prompt = {}, .text = {}, .where = where};
  if (answer.is_string()) {
    document.prompt = prompt.get<std::string>();
    document.text = answer.get<std::string>();
    return document;
  }
  json messages = prompt;
  messages.insert(messages.end(), answer.begin(), answer.end());
  const json& last = messages.back();
  if (!last.is_object() || !last.contains("role") || last["role"] != "assistant")
    throw bad_data(fmt::format("the field \"{}\" does not end with a message of the role assistant", name), where,
                   "end it with the answer");
  document.text = json_text(json{{"messages", std::move(messages)}}, -1);
  document.is_chat = true;
  return document;
}

}  // namespace

std::vector<TextDocument> preference_documents(std::string_view line, const std::string& where) {
  const json tree = parsed(line, where);
  const json &chosen = field(tree, "chosen", where), &rejected = field(tree, "rejected", where);
  json prompt = tree.contains("prompt") ? tree.at("prompt") : chosen.is_array() ? json::array() : json("");
  if (prompt.type() != chosen.type() || rejected.type() != chosen.type())
    throw bad_data(fmt::format("prompt, chosen and rejected are JSON {}, {} and {}", prompt.type_name(),
                               chosen.type_name(), rejected.type_name()),
                   where, kShape);
  if (chosen == rejected) throw bad_data("chosen and rejected are the same", where, "leave the pair out");
  return {document_of(prompt, chosen, "chosen", where), document_of(prompt, rejected, "rejected", where)};
}

}  // namespace zs
