#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/file.h"

namespace zs {

/// Bytes of a disk that are kept for one purpose, in a file without a name: they are free again when it is released, or
/// when the process ends, however it ends. Owns a descriptor; one thread uses it.
class SpaceReserve {
 public:
  /// On the disk of `folder`, or of the nearest folder above it that exists. Error(io) where there is less room, or a
  /// quota or a limit on the size of files forbids it: "the disk has no room for WHAT: so much needed, so much free". A
  /// file system that cannot reserve is only asked how much is free.
  void take(const std::string& folder, std::int64_t bytes, const std::string& what);
  void release() noexcept { file_ = {}; }

 private:
  File file_;
};

/// Error(io), as SpaceReserve has it, where less than `bytes` are free on the disk of `folder`; nothing is reserved.
void check_space(const std::string& folder, std::int64_t bytes, const std::string& what);

/// Free bytes on the disk of `folder`, or of the nearest folder above it that exists; nothing where the system does not
/// say.
std::optional<std::int64_t> free_bytes_at(const std::string& folder);
/// True if what is written there stays in memory.
bool is_in_memory(const std::string& folder);

/// True if an error says that a disk, a quota or the largest size of a file is exhausted.
bool is_for_lack_of_space(const Error& error);

}  // namespace zs
