#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/data/output_file.h"
#include "model/weights/file_dtype.h"
#include "runtime/base/buffer.h"
#include "runtime/base/shape.h"

namespace zs {

/// A tensor that a safetensors file will hold.
struct TensorEntry {
  TensorEntry(std::string tensor, FileDType stored, Shape dims) : name(std::move(tensor)), dtype(stored), shape(dims) {}
  TensorEntry(std::string tensor, DType values, Shape dims)
      : TensorEntry(std::move(tensor), file_dtype(values), dims) {}

  std::string name;
  FileDType dtype;
  Shape shape;
};

/// Writes a safetensors file as a stream: the header from what is known in advance, then the tensors' bytes in the
/// order of the entries, in pieces of any size, so that no more than one piece is in memory. The file appears under its
/// name at finish(), whole and synced, or not at all. One thread uses it. Throws Error(io) when the disk fails,
/// Error(internal) when the caller's tensors do not match the header.
class SafetensorsWriter {
 public:
  /// Names are unique, not empty, and not "__metadata__".
  SafetensorsWriter(std::string path, const std::vector<TensorEntry>& entries,
                    const std::map<std::string, std::string>& metadata = {});

  /// The next `bytes` bytes of the data part; `data` is host memory.
  void append(const void* data, std::int64_t bytes);
  /// A whole tensor, checked to be the next entry.
  void append_tensor(const std::string& name, const Buffer& data);
  void finish();

 private:
  struct Range {
    std::string name;
    FileDType dtype;
    std::int64_t begin, end;
  };
  std::vector<Range> ranges_;
  std::size_t next_ = 0;  // entry of append_tensor
  std::int64_t written_ = 0, total_ = 0;
  OutputFile file_;
};

}  // namespace zs
