#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/train/session.h"

namespace zs {

/// Draws `count` tokens after `prompt` (not empty), one forward a token, at temperature 0.8 from random numbers keyed by
/// (seed, position): the same on every rank. Sees as many of the last tokens as a training sequence has: later
/// positions were never trained. Collective; blocks.
/// `stops`: asked before each of them, the same on every rank; fewer are drawn where it says so.
std::vector<std::int32_t> sample_tokens(Session& session, std::vector<std::int32_t> prompt, std::int64_t count, std::uint64_t seed,
                                        const std::function<bool()>& stops);

/// Tokens of text as that.
std::string bytes_of(const std::vector<std::int32_t>& tokens);

}  // namespace zs
