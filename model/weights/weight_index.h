#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zs {

/// Index of a model's files: the file of each tensor, and how many bytes all of them have.
struct WeightIndex {
  std::map<std::string, std::size_t> file_of;  ///< its place in `files`
  std::vector<std::string> files;              ///< names beside the index
  std::optional<double> total_bytes;           ///< below 0: no number of bytes
};

/// Reads a model.safetensors.index.json value by value: what takes memory is its tensors' names. Error(model), which
/// names `file`.
WeightIndex parse_weight_index(std::string_view text, const std::string& file);

}  // namespace zs
