#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "model/chat/template_tree.h"
#include "model/chat/value.h"

namespace zs::jinja {

/// A line of a chat file: its messages, and what its template gets beside them.
struct Conversation {
  List messages;
  Value tools;  ///< none, or a list
  Dict others;  ///< chat_template_kwargs
  /// Places of the assistant's messages.
  std::vector<std::size_t> answers;
};
/// Reads a JSON object with `messages`, and `tools` and `chat_template_kwargs` where it has them. Throws Error(dataset)
/// for what no template could make a conversation of.
Conversation read_conversation(std::string_view line);
/// Error(dataset) for what this template has no use for: a role, or tools.
void check_fits(const Conversation& conversation, const TemplateTree& tree);

/// Field of a message by name; null: it has none.
const Value* field_of(const Value& message, std::string_view name);

/// The text that the messages make, the first `count` of them, with or without the beginning of an answer behind them.
using RenderMessages = std::function<std::string(const List& messages, bool begins_answer)>;
/// Bytes of the assistant's turn `answer` in `whole`, the text of all messages: from what a template writes to begin an
/// answer, up to where the turn ends. It follows from texts of the first messages, which are compared with the whole.
/// Throws Error(dataset) where they do not say it.
struct Turn {
  std::size_t begin = 0, end = 0;
};
Turn find_turn(const List& messages, std::size_t answer, std::string_view whole, const RenderMessages& render);

}  // namespace zs::jinja
