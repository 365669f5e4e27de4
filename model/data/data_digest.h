#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/data/corpus.h"

namespace zs {

/// 16 hex digits that follow from the number of tokens, `count` from the first on, and from their ids, however they lie
/// in files: XXH3 of all of up to 4 Mi tokens, and of more of 64 blocks of 64 Ki at fixed places, the first and the
/// last tokens among them. So it costs the same for any length, and does not see what changes between the blocks. Ids
/// are not checked.
std::string digest_of(const Corpus& corpus, std::int64_t first, std::int64_t count);

/// The names of files without their folders: "a.bin", or "a.bin to c.bin (3 files, names 01234567)".
std::string describe_names(const std::vector<std::string>& files);

}  // namespace zs
