#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace zs {

/// True if this process may have a file of so many bytes. Where it may not, making one would be more than an error:
/// SIGXFSZ ends a process that does not ignore it.
inline bool may_have_file_of(std::int64_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
         static_cast<rlim_t>(bytes) <= limit.rlim_cur;
}

}  // namespace zs
