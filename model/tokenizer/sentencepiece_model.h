#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace zs {

/// SentencePiece's kinds of pieces, with the numbers that its files and GGUF's have for them.
enum class PieceKind : std::int32_t { normal = 1, unknown, control, user_defined, unused, byte };

/// Contents of a tokenizer.model, as far as others need it to tokenize.
struct SentencePieceModel {
  struct Piece {
    std::string text;
    float score = 0;
    PieceKind kind = PieceKind::normal;
  };
  enum class Type : std::int32_t { unigram = 1, bpe, word, chars };

  std::vector<Piece> pieces;  ///< by id
  Type type = Type::unigram;
  bool has_bytes = false;                          ///< characters without a piece become bytes
  bool adds_space = true, removes_spaces = true;   ///< before a text; of several, all but one
  bool marks_spaces = true, marks_behind = false;  ///< a space is U+2581 in pieces; it ends a word, not begins one
  /// Map that characters go through first, and its compiled form; empty: they stay themselves
  std::string map_name, character_map;
  int unk = -1, bos = -1, eos = -1, pad = -1;  ///< ids; -1: none
};

/// Parses the bytes of a tokenizer.model; without the ids. Throws Error(model), which names `path`, also for a map of
/// characters that leads out of itself, which the library would accept and read beyond.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& path);
/// Checks the model at `path`, and has the library load it. Throws Error(model).
SentencePieceModel load_sentencepiece(const std::string& path, sentencepiece::SentencePieceProcessor& processor);
/// With the ids. Throws Error(model).
SentencePieceModel read_sentencepiece_model(const std::string& path);

}  // namespace zs
