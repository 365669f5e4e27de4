#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace zs {

/// Bytes [begin, end) of a text that a token is of.
struct TokenPlace {
  std::size_t begin = 0, end = 0;
};
/// Places of the ids that `text` was encoded to, without special tokens around it, in these parts. Where a normalizer
/// has changed a word, its tokens are of the whole word.
std::vector<TokenPlace> token_places(const Tokenizer& tokenizer, std::string_view text,
                                     std::span<const std::int32_t> ids, std::span<const EncodedPart> parts);

/// Bytes of a token in GPT-2's alphabet; and of one with a metaspace before words, and bytes as <0x0A>.
std::string bytes_of(std::string_view token);
std::string plain_piece(std::string_view token);

}  // namespace zs
