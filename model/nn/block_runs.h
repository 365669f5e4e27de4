#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Blocks that follow each other and are one unit.
namespace zs {

/// Numbers of blocks, whose parameters have so many `bytes`, that each unit takes, in order: as many units as can have
/// `least` bytes each, and of the ways to do that one whose largest unit is smallest. All in one where together they
/// have less. `bytes` is not empty.
std::vector<std::size_t> merge_blocks(std::span<const std::int64_t> bytes, std::int64_t least);

/// "blocks.0-3" of "blocks.0" and "blocks.3"; "first-layer" where they differ in more than their numbers; of one block
/// its own name.
std::string name_of_blocks(const std::string& first, const std::string& last);

}  // namespace zs
