#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/weights/file_dtype.h"
#include "runtime/base/reader_limits.h"

namespace zs {

/// Header of a safetensors file. The rules are the format's, and stricter where it says nothing (docs/huggingface.md).
struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    FileDType dtype = FileDType::f32;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0, end = 0;  ///< bytes, from the first after the header

    std::int64_t elems() const;
    std::string shape_text() const;  ///< "(2, 3)"
  };
  std::vector<Tensor> tensors;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;

  static constexpr std::int64_t kLengthBytes = 8, kLargest = ReaderLimits::kHeaderBytes;
};

/// The header's length, of the first bytes of a file of `file_bytes`. Error(model), which names `file`.
std::int64_t safetensors_header_bytes(std::string_view first_bytes, std::int64_t file_bytes, const std::string& file);
/// The header itself, of a file that has `data_bytes` after it. It allocates little more than the text has.
/// Error(model).
SafetensorsHeader parse_safetensors_header(std::string_view text, std::int64_t data_bytes, const std::string& file);

}  // namespace zs
