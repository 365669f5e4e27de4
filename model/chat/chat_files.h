#pragma once

#include <map>
#include <string>

namespace zs {

/// Chat templates of a folder by their names, of which "default" is the one that counts: files of their own go before
/// tokenizer_config.json and chat_template.json. Throws Error(model) that names the file.
std::map<std::string, std::string> read_chat_templates(const std::string& folder);

/// Special tokens that templates know by name, such as bos_token.
std::map<std::string, std::string> read_special_tokens(const std::string& folder);

}  // namespace zs
