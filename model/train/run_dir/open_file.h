#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <string>

#include "runtime/base/file.h"

namespace zs {

/// A file of a run's directory, without waiting for it and without following a link: the descriptor, or -1 and errno.
inline int open_there(const std::string& path, int flags) {
  return ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, kFileMode);
}

inline bool is_regular(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace zs
