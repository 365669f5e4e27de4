#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer/regex.h"
#include "model/tokenizer/tokenizer.h"

namespace zs {

/// Treatment of the matches of a pattern that splits a text; tokenizer.json's names.
enum class SplitBehavior : std::uint8_t { isolated, removed, contiguous, merged_with_previous, merged_with_next };

enum class PrependScheme : std::uint8_t { always, first, never };

struct NormalizerStep {
  enum class Kind : std::uint8_t { nfc, nfd, nfkc, nfkd, prepend, replace, strip };
  Kind kind = Kind::nfc;
  std::vector<Regex> pattern;  // replace: one
  std::string text;            // text that is put before, or in the pattern's place
  bool strip_left = false, strip_right = false;
};

struct PreTokenizerStep {
  enum class Kind : std::uint8_t { byte_level, split, metaspace };
  Kind kind = Kind::split;
  std::vector<Regex> pattern;  // pattern of split, and of byte_level and metaspace where they split: one
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;            // the match is what does not match
  bool add_prefix_space = false;  // byte_level
  PrependScheme prepend_scheme = PrependScheme::never;
  std::string replacement;  // metaspace: what a space becomes
};

struct DecoderStep {
  enum class Kind : std::uint8_t { byte_level, replace, byte_fallback, fuse, strip, metaspace, suffix, unsupported };
  Kind kind = Kind::fuse;
  std::vector<Regex> pattern;  // replace: one
  std::string text;  // replace: what comes instead; strip, metaspace: the character; suffix: what ends a word; else the
                     // type's name
  std::int64_t start = 0, stop = 0;
  PrependScheme prepend_scheme = PrependScheme::never;
};

/// No id is larger.
inline constexpr std::int32_t kLargestTokenId = (1 << 24) - 1;

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
};

struct BpeSpec {
  std::vector<std::pair<std::string, std::int32_t>> vocab;       // no id twice
  std::vector<std::pair<std::string, std::string>> merges;       // the first merges first
  std::string unk_token, continuing_prefix, end_of_word_suffix;  // "": none
  bool has_unk = false, fuse_unk = false, byte_fallback = false, ignore_merges = false;
};

/// tokenizer.json, checked as far as one setting goes.
struct TokenizerSpec {
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  bool has_decoder = false;
  std::vector<AddedToken> added_tokens;  // as in the file
  SpecialFrame frame;
  BpeSpec model;
};

/// Throws Error(model) with the file and the setting for what is missing, invalid or not supported.
TokenizerSpec read_tokenizer_json(const std::string& path);

}  // namespace zs
