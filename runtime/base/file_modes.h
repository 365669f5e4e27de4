#pragma once

#include <sys/types.h>

namespace zs {

/// Modes of whatever a run writes, whatever the umask: it is to be read by whoever may enter its folder.
inline constexpr mode_t kFolderMode = 0755, kFileMode = 0644;

}  // namespace zs
