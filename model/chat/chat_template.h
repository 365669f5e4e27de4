#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/conversation.h"
#include "model/chat/interpreter.h"
#include "model/chat/template_tree.h"

namespace zs {

/// Turns of a conversation that are trained on.
enum class TrainOn : std::uint8_t { assistant, last, all };

/// Conversation as text, and its bytes that are trained on.
struct ChatText {
  std::string text;
  std::vector<jinja::TextSpan> trained;
  /// True where turns follow from comparing texts: white space behind the token that ends one is no part of it.
  bool ends_with_token = false;
};

/// Chat template of a model's folder: conversations as the text that transformers makes of them. Immutable: any thread
/// may call any function.
class ChatTemplate {
 public:
  /// Compiles templates, by name ("default", "tool_use"); special tokens are by name, too. `where`: what they were read
  /// from. Throws Error(model) for one that is not read here.
  ChatTemplate(const std::map<std::string, std::string>& templates, std::map<std::string, std::string> special_tokens,
               const std::string& where);
  ~ChatTemplate();

  /// A line of a chat file as text. Throws Error(dataset) whose place is within the line.
  ChatText render(std::string_view line, TrainOn train_on) const;
  /// Its messages, and the beginning of an answer to them: what a model goes on from.
  std::string begin_answer(std::string_view line) const;

 private:
  const jinja::TemplateTree& tree_for(const jinja::Conversation& conversation) const;

  std::map<std::string, jinja::TemplateTree> trees_;
  jinja::Dict special_tokens_;
};

/// `folder`: a tokenizer's, or one of its files. `file`: a template that takes the place of the folder's; empty: none.
/// Throws Error(model), also where there is no template.
std::shared_ptr<const ChatTemplate> open_chat_template(const std::string& folder, const std::string& file);

}  // namespace zs
