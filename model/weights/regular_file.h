#pragma once

#include <cstdint>
#include <optional>
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

/// Path of a file of a model's folder: in the folder itself, or, where the folder lies in a cache of the Hugging Face
/// hub (MODEL/snapshots/REVISION, whose files are links to MODEL/blobs), below MODEL. Nothing where a link leads
/// elsewhere: such a file is not the model's to hand on.
std::optional<std::string> file_of_model(const std::string& folder, const std::string& name);

/// All of a file of at most `most` bytes.
std::string read_text_file(const std::string& path, std::int64_t most);

}  // namespace zs
