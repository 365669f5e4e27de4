#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace zs {

/// The line, from 1, where TOML text first nests more deeply than ReaderLimits::kTomlDepth: arrays and inline tables in
/// each other, or a dotted name of a key or a table. Nothing where it does not. The parser takes stack for each level,
/// so this is asked before it sees the text; text that is no TOML at all may get either answer.
std::optional<std::int64_t> too_deep_line(std::string_view text);

}  // namespace zs
