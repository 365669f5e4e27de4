#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs {

/// What a document is: nothing is one (all text is one sequence), a line, a file, or a line that is a JSON object.
enum class DocumentFormat : std::uint8_t { stream, lines, files, jsonl };

/// What becomes of a document that has more tokens than a sequence.
enum class Overlong : std::uint8_t { refuse, truncate, split };

/// Of files of text: what in them is a document, and what becomes of one that is too long.
struct DocumentOptions {
  DocumentFormat format = DocumentFormat::stream;
  std::string field = "text";     ///< of a JSON object: the document's text
  std::string prompt_field = {};  ///< of a JSON object: what stands before it and counts for nothing; empty: none
  Overlong overlong = Overlong::refuse;
};

/// As read, not yet tokens.
struct TextDocument {
  std::string prompt, text;  ///< together the document
  std::string where;         ///< "file", or "file:line"
};

/// The documents of these files, in their order. Throws Error(dataset) that names file and line: for a file that cannot
/// be read or is no text, a line that is not JSON or lacks a field, and a document without text.
std::vector<TextDocument> read_documents(const std::vector<std::string>& files, const DocumentOptions& options);

}  // namespace zs
