#pragma once

#include <string>
#include <vector>

namespace zs {

/// The files that `patterns` (files, globs, folders) stand for, each once, sorted by path as bytes. A relative pattern
/// is looked up in each of `folders` in turn until one has a match ("" is the current folder). What exists under a name
/// is that, whatever characters the name has: a pattern is what has no such file or folder, part by part of the path.
///
/// A folder gives the files below it, hidden ones excepted, whose names end in `suffix`. Links to files and folders are
/// followed, each folder once; not a link to a folder that holds the one which is listed. Throws Error(dataset) for a
/// pattern without a match, and for a folder that cannot be listed.
std::vector<std::string> find_data_files(const std::vector<std::string>& patterns,
                                         const std::vector<std::string>& folders, const std::string& suffix);

}  // namespace zs
