#include "model/chat/conversation.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/chat/json_value.h"
#include "model/chat/methods.h"
#include "runtime/base/check.h"

namespace zs::jinja {
namespace {

[[noreturn]] void bad_message(std::size_t i, const std::string& what, const std::string& todo) {
  throw Error(ExitCode::dataset, fmt::format("messages[{}] {}", i, what), "", todo);
}

bool has_text(const Value* value) {
  return value != nullptr && value->is(Value::Kind::string) && !stripped(value->text(), nullptr, true, true).empty();
}

void check_part(const Value& part, std::size_t i) {
  const Value* const type = part.is(Value::Kind::dict) ? part.entries().find("type") : nullptr;
  if (type == nullptr || !type->is(Value::Kind::string))
    bad_message(i, "has a content whose parts are no objects with a type",
                "write {\"type\": \"text\", \"text\": \"...\"}");
  const Value* const text = part.entries().find("text");
  if (type->text() != "text" || text == nullptr || !text->is(Value::Kind::string))
    bad_message(i, fmt::format("has a part of type \"{}\" without a text", shortened(type->text())),
                "leave it out: models of text alone are trained");
}

/// True if there is anything in it that could be trained on.
bool check_content(const Value& message, std::size_t i) {
  const Value* const content = field_of(message, "content");
  if (content == nullptr) return false;
  if (content->is(Value::Kind::string)) return has_text(content);
  if (!content->is_list())
    bad_message(i, fmt::format("has a content that is a JSON {}", content->type()), "write a text, or a list of parts");
  bool has_any = false;
  for (const Value& part : content->items()) {
    check_part(part, i);
    has_any = has_any || has_text(part.entries().find("text"));
  }
  return has_any;
}

/// As transformers gives it to a template: without nulls, and reasoning by both its names.
Value normalized(const Value& message) {
  Dict fields;
  for (const auto& [name, value] : message.entries().entries())
    if (!value.is(Value::Kind::none)) fields.set(name, value);
  for (const char* const name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* const reasoning = fields.find(name);
    if (reasoning == nullptr) continue;
    const Value text = *reasoning;
    if (fields.find("thinking") == nullptr) fields.set("thinking", text);
    fields.set("reasoning_content", text);
    break;
  }
  return Value::dict(std::move(fields));
}

void add_message(const Value& given, std::size_t i, Conversation& conversation) {
  if (!given.is(Value::Kind::dict))
    bad_message(i, fmt::format("is a JSON {}, not an object", given.type()), "write {\"role\": ..., \"content\": ...}");
  const Value message = normalized(given);
  const Value* const role = field_of(message, "role");
  if (role == nullptr) {
    const bool is_share_gpt = field_of(message, "from") != nullptr;
    bad_message(i, "has no role",
                is_share_gpt ? "rename from and value: role and content, human: user, gpt: assistant"
                             : "give it one: system, user, assistant or tool");
  }
  if (!role->is(Value::Kind::string))
    bad_message(i, "has a role that is no text", "name a role: system, user, assistant or tool");
  const bool has_content = check_content(message, i);
  if (role->text() == "assistant") {
    const Value* const calls = field_of(message, "tool_calls");
    if (calls != nullptr && !calls->is_list())
      bad_message(i, "has tool_calls that are no list", "write a list, or leave them out");
    const bool has_calls = calls != nullptr && calls->truth();
    if (!has_content && !has_calls && !has_text(field_of(message, "reasoning_content")))
      bad_message(i, "of the role assistant is empty", "leave the conversation out, or write the answer");
    conversation.answers.push_back(i);
  }
  conversation.messages.push_back(message);
}

Value tools_of(const Value& line) {
  const Value* const tools = line.entries().find("tools");
  if (tools == nullptr || tools->is(Value::Kind::none)) return Value::none();
  Value list = *tools;
  if (tools->is(Value::Kind::string) && read_value(tools->text(), list)) list = *tools;  // a list as a text
  const bool is_good = list.is_list() && std::all_of(list.items().begin(), list.items().end(),
                                                     [](const Value& tool) { return tool.is(Value::Kind::dict); });
  if (!is_good)
    throw Error(ExitCode::dataset, "the field \"tools\" is no list of objects", "",
                "write one JSON schema for each tool, or leave it out");
  return list.truth() ? list : Value::none();
}

}  // namespace

const Value* field_of(const Value& message, std::string_view name) { return message.entries().find(name); }

Conversation read_conversation(std::string_view text) {
  Value line;
  if (const auto problem = read_value(text, line))
    throw Error(
        ExitCode::dataset,
        fmt::format("the line {}", problem->is_no_json ? fmt::format("is not JSON, from its byte {} on", problem->byte)
                                                       : problem->what),
        "", "write one JSON object a line");
  const auto bad_line = [](const std::string& what, const char* todo) {
    throw Error(ExitCode::dataset, what, "", todo);
  };
  if (!line.is(Value::Kind::dict)) bad_line("the line is no JSON object", "write {\"messages\": [...]}");
  const Value* const messages = line.entries().find("messages");
  if (messages == nullptr)
    bad_line("the line has no field \"messages\"",
             line.entries().find("conversations") != nullptr
                 ? "rename conversations, from and value: messages, role and content; human: user, gpt: assistant"
                 : "write {\"messages\": [{\"role\": ..., \"content\": ...}, ...]}, or set another data.format");
  if (!messages->is_list())
    bad_line(fmt::format("the field \"messages\" is a JSON {}, not a list", messages->type()),
             "write a list of messages");
  if (messages->items().empty()) bad_line("the field \"messages\" is an empty list", "leave the conversation out");
  Conversation conversation;
  for (std::size_t i = 0; i < messages->items().size(); ++i) add_message(messages->items()[i], i, conversation);
  conversation.tools = tools_of(line);
  const Value* const others = line.entries().find("chat_template_kwargs");
  if (others != nullptr && !others->is(Value::Kind::none)) {
    if (!others->is(Value::Kind::dict))
      bad_line("the field \"chat_template_kwargs\" is no object", "write an object, or leave it out");
    conversation.others = others->entries();
  }
  return conversation;
}

void check_fits(const Conversation& conversation, const TemplateTree& tree) {
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    const std::string& role = field_of(conversation.messages[i], "role")->text();
    const auto known = {"system", "developer", "user", "assistant", "tool", "function", "ipython"};
    if (std::find(known.begin(), known.end(), role) == known.end() && !tree.literals.contains(role))
      bad_message(i, fmt::format("has the role \"{}\", which the chat template does not know", shortened(role)),
                  role == "human" || role == "gpt" ? "rename it: human is user, gpt is assistant"
                                                   : "use system, user, assistant or tool");
  }
  if (!conversation.tools.is(Value::Kind::none) && !tree.names.contains("tools"))
    throw Error(ExitCode::dataset, "the line has tools, and the chat template has no place for them", "",
                "leave them out, or use a template that has");
}

namespace {

std::size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

/// Text that no conversation has.
constexpr const char* kMark = "\xee\x80\x80";

/// The value with a mark before or behind it: a text, or, behind, the arguments of a call.
std::optional<Value> marked(const Value* value, bool at_end) {
  if (value == nullptr) return std::nullopt;
  if (value->is(Value::Kind::string) && !value->text().empty())
    return Value::string(at_end ? value->text() + kMark : kMark + value->text());
  if (!value->is(Value::Kind::dict) || !at_end) return std::nullopt;
  Dict entries = value->entries();
  entries.set(kMark, Value::none());
  return Value::dict(std::move(entries));
}

Value with_field(const Value& of, const char* name, Value value) {
  Dict fields = of.entries();
  fields.set(name, std::move(value));
  return Value::dict(std::move(fields));
}

/// The last call of a message, marked behind its arguments.
std::optional<Value> marked_calls(const Value& message) {
  const Value* const calls = field_of(message, "tool_calls");
  if (calls == nullptr || !calls->truth() || !calls->items().back().is(Value::Kind::dict)) return std::nullopt;
  List list = calls->items();
  const Value* const function = field_of(list.back(), "function");
  const bool has_function = function != nullptr && function->is(Value::Kind::dict);
  const Value owner = has_function ? *function : list.back();
  const std::optional<Value> arguments = marked(field_of(owner, "arguments"), true);
  if (!arguments) return std::nullopt;
  const Value changed = with_field(owner, "arguments", *arguments);
  list.back() = has_function ? with_field(list.back(), "function", changed) : changed;
  return with_field(message, "tool_calls", Value::list(std::move(list)));
}

/// The messages with a mark before or behind the content of one of them; none: it has nothing to be marked.
std::optional<List> marked_messages(const List& messages, std::size_t i, bool at_end) {
  std::optional<Value> message = at_end ? marked_calls(messages[i]) : std::nullopt;
  if (const auto content = marked(field_of(messages[i], "content"), at_end); content && !message)
    message = with_field(messages[i], "content", *content);
  if (!message) return std::nullopt;
  List others = messages;
  others[i] = *message;
  return others;
}

/// Place where the content of a message begins or ends in `text`, which the messages make.
std::optional<std::size_t> content_edge(const List& messages, std::size_t i, bool at_end, std::string_view text,
                                        const RenderMessages& render) {
  const std::optional<List> others = marked_messages(messages, i, at_end);
  if (!others) return std::nullopt;
  const std::string other = render(*others, false);
  constexpr std::size_t kReach = 64;  // white space that is trimmed, and what JSON has before a key
  const std::size_t edge = common_prefix(text, other), mark = other.find(kMark, edge);
  return mark != std::string::npos && mark - edge <= (at_end ? kReach : 0) ? std::optional(edge) : std::nullopt;
}

[[noreturn]] void no_turn(std::size_t i) {
  bad_message(i, "is the assistant's, and the chat template does not show where it begins and ends",
              "set data.train_on = \"all\", or put {% generation %} into the template (data.chat_template)");
}

}  // namespace

Turn find_turn(const List& messages, std::size_t answer, std::string_view whole, const RenderMessages& render) {
  const auto until = messages.begin() + static_cast<std::ptrdiff_t>(answer);
  const List before(messages.begin(), until), with(messages.begin(), until + 1);
  Turn turn;
  const std::string begun = answer == 0 ? std::string() : render(before, true);
  const std::string history = answer == 0 || whole.starts_with(begun) ? std::string() : render(before, false);
  if (answer > 0 && whole.starts_with(begun)) {
    turn.begin = begun.size();
  } else {
    const auto edge = content_edge(messages, answer, false, whole, render);
    const bool is_same = answer > 0 && whole.starts_with(history);
    if (!edge && !is_same) no_turn(answer);
    turn.begin = std::min(edge.value_or(whole.size()), is_same ? common_prefix(whole, begun) : whole.size());
  }
  const std::string alone = answer + 1 == messages.size() ? std::string(whole) : render(with, false);
  if (whole.starts_with(alone)) {
    turn.end = alone.size();
  } else {
    const auto edge = content_edge(messages, answer, true, whole, render);
    const auto edge_alone = content_edge(with, answer, true, alone, render);
    if (!edge || !edge_alone) no_turn(answer);
    turn.end = *edge + common_prefix(whole.substr(*edge), std::string_view(alone).substr(*edge_alone));
  }
  if (turn.end <= turn.begin) no_turn(answer);
  return turn;
}

}  // namespace zs::jinja
