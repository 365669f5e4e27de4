#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/weights/regular_file.h"
#include "model/weights/safetensors_header.h"

namespace zs {

/// The safetensors files of a model, checked in full: one file, or those that an index names. Only headers are in
/// memory. One thread uses it. Throws Error(model).
class WeightFiles {
 public:
  static constexpr const char *kFile = "model.safetensors", *kIndex = "model.safetensors.index.json";

  /// A file, an index (NAME.json), or a folder that has model.safetensors or model.safetensors.index.json.
  explicit WeightFiles(const std::string& path);

  /// One of the files, and what its header says.
  struct File {
    std::string name, path, identity;
    std::int64_t data_begin = 0, bytes = 0;
    SafetensorsHeader header;
  };
  /// Place of a tensor.
  struct Tensor {
    std::size_t file = 0;
    std::size_t index = 0;  ///< among the file's tensors
  };

  const std::vector<File>& files() const { return files_; }
  /// Tensors of all files by name.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const SafetensorsHeader::Tensor& header_of(const Tensor& tensor) const {
    return files_[tensor.file].header.tensors[tensor.index];
  }
  const SafetensorsHeader::Tensor* find(const std::string& name) const;
  /// Bytes of a tensor, from its byte `offset` on.
  void read(const std::string& name, std::int64_t offset, void* out, std::int64_t bytes);
  /// Bytes of all tensors.
  std::int64_t data_bytes() const;
  /// Warnings about an index that does not say what its files are; the files count, as in transformers.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void add_file(const std::string& folder, const std::string& name);
  void read_index(const std::string& folder, const std::string& name);
  RegularFile& opened(std::size_t file);

  std::vector<File> files_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> warnings_;
  std::unique_ptr<RegularFile> open_;  // one at a time: an index may name more files than a process may open
  std::size_t open_index_ = 0;
};

/// A line for each file, and one for all: what --verify-weights prints. Error(model) where something is wrong.
std::string describe_weights(const std::string& path);

}  // namespace zs
