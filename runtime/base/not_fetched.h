#pragma once

#include <algorithm>
#include <string_view>

namespace zs {

/// Pointer that stands in the place of a file that Git LFS has not fetched.
constexpr bool is_lfs_pointer(std::string_view text) {
  return text.starts_with("version https://git-lfs.github.com/spec/");
}
inline constexpr const char* kLfsPointer = "this is a pointer of Git LFS, and not the file that it stands for";
inline constexpr const char* kFetchLfs = "fetch that: git lfs pull, in the folder that was cloned";

/// "meta-llama/Llama-3.2-1B": what may be a model of the Hugging Face hub, and is no path that a person would write.
constexpr bool is_like_hub_name(std::string_view path) {
  return std::count(path.begin(), path.end(), '/') == 1 && !path.starts_with('/') && !path.starts_with('.') &&
         !path.starts_with('~') && !path.ends_with('/') && path.find(':') == path.npos;
}
inline constexpr const char* kFetchModel =
    "nothing is downloaded: if that is a model of the hub, fetch it first (hf download NAME --local-dir FOLDER), and "
    "name the folder";

}  // namespace zs
