#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>

namespace zs {

/// Flags for memfd_create.
inline constexpr unsigned kSealable = 1U | 2U;  // MFD_CLOEXEC | MFD_ALLOW_SEALING

inline constexpr int kSealsOfSize = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// Seals the size of the anonymous file: from here on it keeps that. True if it could be done.
inline bool seal_size(int fd) { return fcntl(fd, F_ADD_SEALS, kSealsOfSize) == 0; }

/// True if a file that another process offers is safe to map: an anonymous one of this user's, of that size, and
/// sealed. Of any other file a read could end this process (SIGBUS), and a write could change what is somebody's.
inline bool is_safe_to_map(int fd, std::int64_t bytes) {
  struct stat status {};
  if (fd < 0 || fstat(fd, &status) != 0 || status.st_uid != geteuid() || status.st_size != bytes) return false;
  const int seals = fcntl(fd, F_GET_SEALS);  // -1 of what is no anonymous file
  return seals >= 0 && (seals & kSealsOfSize) == kSealsOfSize;
}

}  // namespace zs
