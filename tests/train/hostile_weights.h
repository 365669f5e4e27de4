#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs::test {

/// A safetensors file, or what claims to be one, and what the reader must say.
struct WeightCase {
  std::string name, bytes;
  std::string problem = {};  ///< a part of the message; empty: the file is valid
};

/// `length` as the header's first 8 bytes.
std::string length_bytes(std::uint64_t length);
/// A file of a header, as it is, and so many bytes behind it.
std::string safetensors(const std::string& header, std::size_t data_bytes);
std::vector<WeightCase> weight_cases();

}  // namespace zs::test
