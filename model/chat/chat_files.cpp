#include "model/chat/chat_files.h"

#include <filesystem>

#include "model/tokenizer/json_fields.h"
#include "model/tokenizer/read_file.h"
#include "model/tokenizer/tokenizer_config.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

nlohmann::json document_of(const fs::path& path) {
  std::error_code failed;
  return fs::exists(path, failed) ? read_tokenizer_document(path.string()) : nlohmann::json::object();
}

}  // namespace

std::map<std::string, std::string> read_chat_templates(const std::string& folder) {
  std::map<std::string, std::string> templates;
  std::error_code failed;
  const auto add_file = [&](const std::string& name, const fs::path& path) {
    if (fs::is_regular_file(path, failed)) templates[name] = read_tokenizer_file(path.string());
  };
  add_file("default", fs::path(folder) / "chat_template.jinja");
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(folder) / "additional_chat_templates", failed))
    if (entry.path().extension() == ".jinja") add_file(entry.path().stem().string(), entry.path());
  for (const char* const file : {"tokenizer_config.json", "chat_template.json"}) {
    const std::string path = (fs::path(folder) / file).string();
    const nlohmann::json document = document_of(path);
    Fields fields(document, path, "");
    const nlohmann::json* const value = fields.find("chat_template");
    if (value == nullptr) continue;
    if (value->is_string()) {
      templates.emplace("default", value->get<std::string>());
      continue;
    }
    const nlohmann::json& list = fields.array("chat_template");
    for (std::size_t i = 0; i < list.size(); ++i) {
      Fields one = fields.element(list, "chat_template", i);
      templates.emplace(one.text("name"), one.text("template"));
    }
  }
  return templates;
}

std::map<std::string, std::string> read_special_tokens(const std::string& folder) {
  std::map<std::string, std::string> tokens;
  const TokenizerConfig config = read_tokenizer_config(folder);
  for (const auto& [name, token] : {std::pair("bos_token", &config.bos_token),
                                    {"eos_token", &config.eos_token},
                                    {"unk_token", &config.unk_token},
                                    {"pad_token", &config.pad_token}})
    if (!token->empty()) tokens[name] = *token;
  const std::string path = (fs::path(folder) / "tokenizer_config.json").string();
  const nlohmann::json document = document_of(path);
  Fields fields(document, path, "");
  for (const char* const name : {"sep_token", "cls_token", "mask_token"}) {
    const nlohmann::json* const token = fields.find(name);
    if (token != nullptr)
      tokens[name] = token->is_string() ? token->get<std::string>() : fields.object(name).text("content");
  }
  return tokens;
}

}  // namespace zs
