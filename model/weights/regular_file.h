#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/file.h"

namespace zs {

/// A regular file that is read by position. One that shrinks or is replaced meanwhile is an Error, never a signal. Owns
/// the descriptor; one thread uses it. Throws Error(model).
class RegularFile {
 public:
  explicit RegularFile(std::string path);

  const std::string& path() const { return path_; }
  std::int64_t bytes() const { return bytes_; }
  /// Changes when another file takes this one's place or it is written to.
  std::string identity() const { return identity_; }
  void read(std::int64_t offset, void* out, std::int64_t bytes) const;

 private:
  std::string path_, identity_;
  File file_;
  std::int64_t bytes_ = 0;
};

/// All of a file of at most `most` bytes.
std::string read_text_file(const std::string& path, std::int64_t most);

}  // namespace zs
