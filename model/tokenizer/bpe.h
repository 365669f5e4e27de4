#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tokenizer/tokenizer_spec.h"

namespace zs {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Vocabulary = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

/// Byte-pair encoding of single words: first the word's symbols (its characters; its bytes in GPT-2's alphabet where
/// `byte_level`), then the merges, lowest rank first, and of one rank from the left. Immutable.
class Bpe {
 public:
  /// Throws Error(model) that names `file` for merges whose tokens are not in the vocabulary.
  Bpe(const BpeSpec& spec, bool byte_level, const std::string& file);

  /// Encodes a word that is not empty, in UTF-8 (raw bytes where byte_level). Appends its ids. Time n log n. Throws
  /// Error(model) where a character has no token and the unknown token, which then counts, is not in the vocabulary.
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const;

  /// Place where a long text may be cut without a change to its ids: the end of the piece that begins at `from`. Merges
  /// never reach over it.
  std::size_t piece_end(std::string_view text, std::size_t from) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    std::uint64_t pair = kNoPair;
    std::int32_t rank = 0, id = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};
  static constexpr std::uint16_t kNoClass = 0xffff;
  static constexpr std::size_t kMostClasses = 8192;
  struct Queued;

  void add_merges(const BpeSpec& spec);
  void insert_merge(const Merge& merge);
  void index_symbols();
  void find_cuts(const BpeSpec& spec);
  const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  std::int32_t character_id(std::string_view text, std::size_t at) const;
  std::uint16_t cut_class(std::string_view text, std::size_t at) const;
  void append_symbols(std::string_view word, std::vector<std::int32_t>& out) const;
  void append_bytes_symbols(std::string_view word, std::vector<std::int32_t>& out) const;
  bool append_byte_fallback(std::string_view symbol, std::vector<std::int32_t>& out) const;
  void merge_short(std::vector<std::int32_t>& symbols, std::size_t begin) const;
  void merge_long(std::vector<std::int32_t>& symbols, std::size_t begin) const;

  std::string file_;
  bool byte_level_, fuse_unk_, has_affixes_, ignore_merges_;
  bool has_unk_ = false;
  std::string unk_token_, prefix_, suffix_;
  std::int32_t unk_id_ = -1;  // -1 with has_unk_: not in the vocabulary
  Vocabulary vocabulary_;
  Vocabulary words_;                              // ignore_merges: as encode_word gets them
  std::array<std::int32_t, 256> byte_ids_{};      // byte_level: of a byte's character
  std::array<std::int32_t, 256> fallback_ids_{};  // ids of <0x00> ...; -1: none
  bool has_fallback_ = false, has_all_fallback_ = false;
  std::vector<std::int32_t> character_ids_;  // ids of the first 65536 characters; -1: none
  std::vector<Merge> merges_;                // a hash table, a power of two in size
  std::uint64_t merge_mask_ = 0;
  // Cuts: two characters between which some merge joins tokens, as bits (left class, right class). Empty: no cuts.
  std::vector<std::uint16_t> classes_;  // by id
  std::vector<std::uint64_t> joined_;
  std::size_t class_words_ = 0;
};

}  // namespace zs
