#pragma once

#include <string>
#include <vector>

namespace zs {

/// The files that `patterns` (files, globs, folders) stand for, each once, sorted by path as bytes. A relative pattern is
/// looked up in each of `folders` in turn until one has a match ("" is the current folder). A folder gives the files below it,
/// hidden ones excepted, whose names end in `suffix`. Throws Error(dataset) for a pattern without a match.
std::vector<std::string> find_data_files(const std::vector<std::string>& patterns, const std::vector<std::string>& folders,
                                         const std::string& suffix);

}  // namespace zs
