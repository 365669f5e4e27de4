#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/file.h"

namespace zs {

/// A new file that several ranks write, each its own parts, and that appears whole or not at all. One rank creates it
/// beside its place, the others open it there; when all have finished, the first publishes it. Owns a descriptor; the
/// first owns the file until then, and removes it where it is not published. One thread uses it. Throws
/// Error(cannot_create), and Error(io) once it is open.
class PartFile {
 public:
  /// The first rank: `path` must not exist (check_output).
  static PartFile create(const std::string& path);
  /// Any other: `temporary` of the first.
  static PartFile open(const std::string& path, const std::string& temporary);
  PartFile(PartFile&& other) noexcept;
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile();

  const std::string& temporary() const { return temporary_; }
  void write(std::int64_t offset, const void* data, std::size_t bytes);
  /// This rank's parts are on the disk.
  void finish();
  /// The first rank, when all have finished. Whatever has taken the name meanwhile stays: Error(cannot_create).
  void publish();

 private:
  PartFile(std::string path, std::string temporary, File file, bool is_first)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)), owns_file_(is_first) {}
  void check(const char* operation, int error) const;

  std::string path_, temporary_;
  File file_;
  bool owns_file_;
};

}  // namespace zs
