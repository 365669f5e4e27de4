#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace zs {

/// A file that appears whole or not at all: written beside its place under a temporary name, then synced and renamed by
/// commit(). Owns descriptor and temporary file; without commit() the destructor removes it. One thread uses it. Throws
/// Error(cannot_create) when it cannot be opened and Error(io) when anything later fails; after that only destruction
/// is legal.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, std::size_t bytes);
  /// Overwrites bytes that are written already.
  void overwrite(std::size_t offset, const void* data, std::size_t bytes);
  void commit();
  /// Commits without syncing: quick, and a loss of power may take the file.
  void publish();

 private:
  [[noreturn]] void fail(const char* operation, int error) const;

  std::string path_, temporary_;
  int descriptor_ = -1;
  std::size_t written_ = 0;
  bool has_temporary_ = false;
};

/// Name of the file that an OutputFile of another process was writing, where `name` is that of its temporary file: "a"
/// of "a.123-0.tmp". Nothing for any other name, nor for a file of this process, which may still be at it.
std::optional<std::string> leftover_of(const std::string& name);

void write_file_atomically(const std::string& path, std::string_view content);

}  // namespace zs
