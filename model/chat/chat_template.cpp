#include "model/chat/chat_template.h"

#include <fmt/format.h>

#include "model/chat/chat_files.h"
#include "model/chat/interpreter.h"
#include "model/tokenizer/read_file.h"
#include "model/tokenizer/tokenizer_config.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

using jinja::Conversation;
using jinja::TemplateError;
using jinja::Value;

std::string with_line(const TemplateError& error) {
  return error.line() == 0 ? error.what() : fmt::format("its line {}: {}", error.line(), error.what());
}

Error render_error(const TemplateError& error) {
  const bool is_raised = error.kind() == TemplateError::Kind::raised;
  return {ExitCode::dataset,
          is_raised ? fmt::format("the chat template refuses the conversation: {}", error.what())
                    : fmt::format("the chat template fails, {}", with_line(error)),
          "",
          is_raised ? "change the conversation, or leave it out"
                    : "give what it asks for, or set data.chat_template to another"};
}

class Renderer {
 public:
  Renderer(const jinja::TemplateTree& tree, const Conversation& conversation, const jinja::Dict& special_tokens)
      : tree_(tree), variables_(special_tokens) {
    for (const auto& [name, value] : conversation.others.entries()) variables_.set(name, value);
    variables_.set("tools", conversation.tools);
    variables_.set("documents", Value::none());
  }

  jinja::Rendered render(const jinja::List& messages, bool begins_answer) {
    variables_.set("messages", Value::list(messages));
    variables_.set("add_generation_prompt", Value::boolean(begins_answer));
    try {
      return jinja::render(tree_, variables_);
    } catch (const TemplateError& error) {
      throw render_error(error);
    }
  }

 private:
  const jinja::TemplateTree& tree_;
  jinja::Dict variables_;
};

/// Turns as they follow from texts of the first messages.
std::vector<jinja::TextSpan> compared_turns(const Conversation& conversation, TrainOn train_on,
                                            const std::string& whole, Renderer& renderer) {
  std::vector<jinja::TextSpan> turns;
  const auto render = [&](const jinja::List& messages, bool begins_answer) {
    return renderer.render(messages, begins_answer).text;
  };
  for (const std::size_t answer : conversation.answers) {
    if (train_on == TrainOn::last && answer != conversation.answers.back()) continue;
    const jinja::Turn turn = jinja::find_turn(conversation.messages, answer, whole, render);
    turns.push_back({turn.begin, turn.end});
  }
  return turns;
}

}  // namespace

ChatTemplate::ChatTemplate(const std::map<std::string, std::string>& templates,
                           std::map<std::string, std::string> special_tokens, const std::string& where) {
  for (const auto& [name, source] : templates) {
    if (name != "default" && name != "tool_use") continue;
    try {
      trees_.emplace(name, jinja::parse_template(source));
    } catch (const TemplateError& error) {
      const bool is_unsupported = error.kind() == TemplateError::Kind::unsupported;
      throw Error(ExitCode::model,
                  fmt::format("the chat template is {}, {}", is_unsupported ? "not supported" : "no template",
                              with_line(error)),
                  where,
                  is_unsupported ? "set data.chat_template to one without it, or render the chats first"
                                 : "correct it, or set data.chat_template to another");
    }
  }
  for (auto& [name, token] : special_tokens) special_tokens_.set(name, Value::string(std::move(token)));
}

ChatTemplate::~ChatTemplate() = default;

const jinja::TemplateTree& ChatTemplate::tree_for(const Conversation& conversation) const {
  const bool is_for_tools = !conversation.tools.is(Value::Kind::none) && trees_.contains("tool_use");
  const jinja::TemplateTree& tree = trees_.at(is_for_tools ? "tool_use" : "default");
  jinja::check_fits(conversation, tree);
  return tree;
}

std::string ChatTemplate::begin_answer(std::string_view line) const {
  const Conversation conversation = jinja::read_conversation(line);
  return Renderer(tree_for(conversation), conversation, special_tokens_).render(conversation.messages, true).text;
}

ChatText ChatTemplate::render(std::string_view line, TrainOn train_on) const {
  const Conversation conversation = jinja::read_conversation(line);
  const jinja::TemplateTree& tree = tree_for(conversation);
  if (conversation.answers.empty() && train_on != TrainOn::all)
    throw Error(ExitCode::dataset,
                "the conversation has no message of the role assistant, so that nothing of it is trained on", "",
                "leave it out, or set data.train_on = \"all\"");
  Renderer renderer(tree, conversation, special_tokens_);
  jinja::Rendered whole = renderer.render(conversation.messages, false);
  if (train_on == TrainOn::all) return {whole.text, {{0, whole.text.size()}}, false};
  if (!tree.has_generation) {
    std::vector<jinja::TextSpan> turns = compared_turns(conversation, train_on, whole.text, renderer);
    return {std::move(whole.text), std::move(turns), true};
  }
  if (whole.generated.empty())
    throw Error(ExitCode::dataset, "the chat template marks nothing of the conversation as generated", "",
                "correct its {% generation %} blocks, or leave the conversation out");
  if (train_on == TrainOn::last) whole.generated.erase(whole.generated.begin(), whole.generated.end() - 1);
  return {std::move(whole.text), std::move(whole.generated), false};
}

std::shared_ptr<const ChatTemplate> open_chat_template(const std::string& path, const std::string& file) {
  const std::string folder = find_tokenizer_files(path).folder;
  std::map<std::string, std::string> templates =
      file.empty() ? read_chat_templates(folder)
                   : std::map<std::string, std::string>{{"default", read_tokenizer_file(file)}};
  if (!templates.contains("default"))
    throw Error(ExitCode::model, "the folder has no chat template", folder,
                "use a model that was made for chats, or set data.chat_template to a file with one");
  return std::make_shared<const ChatTemplate>(templates, read_special_tokens(folder), file.empty() ? folder : file);
}

}  // namespace zs
