#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs {

/// Unit of text that is a document: nothing is one (all text is one sequence), a line, a file, or a line that is a JSON
/// object: one with a text, one with a conversation, or one with two of which one is preferred.
enum class DocumentFormat : std::uint8_t { stream, lines, files, jsonl, chat, preference };

/// Treatment of a document that has more tokens than a sequence.
enum class Overlong : std::uint8_t { refuse, truncate, split };

/// Documents in files of text: what in them is one, and what becomes of one that is too long.
struct DocumentOptions {
  DocumentFormat format = DocumentFormat::stream;
  std::string field = "text";  ///< key of a JSON object that holds the document's text
  /// Key of a JSON object that holds what stands before the text and counts for nothing; empty: none
  std::string prompt_field = {};
  Overlong overlong = Overlong::refuse;
};

/// Document as read, not yet tokens.
struct TextDocument {
  std::string prompt, text;  ///< together the document; of a chat, the line as it is
  std::string where;         ///< "file", or "file:line"
  bool is_chat = false;      ///< a chat template renders the text
};

/// The documents of these files, in their order. Throws Error(dataset) that names file and line: for a file that cannot
/// be read or is no text, a line that is not JSON or lacks a field, and a document without text.
std::vector<TextDocument> read_documents(const std::vector<std::string>& files, const DocumentOptions& options);

}  // namespace zs
